"""Loads the C extension modules of crc32c and aiokafka without the other modules of these packages.

`import crc32c` also imports importlib.metadata (40 ms). `import aiokafka` imports a complete Kafka client (200 ms, and
12 MB more than the extension needs). The broker should start in a fraction of a second, so both extensions are loaded
without running the `__init__` module of their packages. The packages can still be imported later.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, cast


def _package_directory(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"headrace needs the package {package!r}: pip install {package}", name=package)
    return spec.submodule_search_locations[0]


def load_crc32c() -> Callable[..., int]:
    """Return the function `crc32c(buffer, value=0) -> int`, hardware-accelerated if the C extension is installed."""
    finder = importlib.machinery.FileFinder(
        _package_directory("crc32c"),
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    )
    spec = finder.find_spec("_crc32c")
    if spec is None or spec.loader is None:  # the package was built without the C extension, so use its Python code
        return cast("Callable[..., int]", importlib.import_module("crc32c").crc32c)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Callable[..., int]", module.crc32c)


class _LazyCodecs(ModuleType):
    """Replaces the module `aiokafka.codec` during the import of aiokafka's C module.

    When a function of this placeholder is called, it imports the real module and calls the real function. This happens
    only in a process that itself uses aiokafka, because headrace's own code compresses with `records.compression`.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            return getattr(importlib.import_module("aiokafka.codec"), name)(*arguments)

        return call


@cache
def load_aiokafka_records() -> Any:
    """Return aiokafka's C module for magic 2 batches (`DefaultRecordBatch`, `DefaultRecordBatchBuilder`)."""
    name = "aiokafka.record._crecords.default_records"
    if "aiokafka" in sys.modules:
        return importlib.import_module(name)
    directory = _package_directory("aiokafka")
    for package, path in (
        ("aiokafka", directory),
        ("aiokafka.record", f"{directory}/record"),
        ("aiokafka.record._crecords", f"{directory}/record/_crecords"),
    ):
        empty_package = ModuleType(package)
        empty_package.__path__ = [path]
        sys.modules[package] = empty_package
    codecs = sys.modules["aiokafka.codec"] = _LazyCodecs("aiokafka.codec")
    sys.modules["aiokafka"].__dict__["codec"] = codecs
    try:
        return importlib.import_module(name)
    finally:
        for loaded in [module for module in sys.modules if module.partition(".")[0] == "aiokafka"]:
            del sys.modules[loaded]
