"""Checks that the modules that promise to do no I/O keep this promise. `make check` runs it.

    python tests/support/pure_modules.py

A module promises this with the sentence "This module does no I/O." in its docstring. The sentence "This package does no
I/O." in the docstring of a package's `__init__.py` applies to all modules of the package, except those whose docstring
starts a sentence with "This module does I/O".

A module that makes the promise must not import a module of the standard library or a driver that does I/O, and none of
our modules that imports one, directly or indirectly. Imports in functions count. Imports for type checkers do not. The
module must also not call a function that reads the clock or a file without such an import, for example `open`, and not
pass it on, for example as a `default_factory`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grimp

ROOTS = {
    "headrace_broker": Path("broker"),
    "headrace": Path("platform"),
    "headrace_transforms": Path("transforms"),
    "headrace_connectors": Path("connectors"),
}
"""Our packages, and the folder that contains each of them."""

FORBIDDEN = frozenset(
    {
        # clocks, random sources, threads, processes, sockets and files of the standard library
        "asyncio", "concurrent", "fcntl", "glob", "http", "mmap", "multiprocessing", "os", "queue", "random", "sched",
        "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
        "tempfile", "threading", "time",
        # imports of modules that this check does not see
        "importlib",
        # event loops, servers and drivers
        "boto3", "botocore", "confluent_kafka", "deltalake", "elastic_transport", "psutil", "psycopg", "pymysql",
        "pyspark", "starlette", "uvicorn", "uvloop",
    }
)  # fmt: skip

FORBIDDEN_FUNCTIONS = frozenset({"open", "input", "uuid1", "uuid4", "__import__"})
FORBIDDEN_METHODS = frozenset(
    {"now", "utcnow", "today", "uuid1", "uuid4", "read_bytes", "read_text", "write_bytes", "write_text"}
)

EXCEPTIONS = (
    # the definitions of configuration keys check that the plug-ins of a configuration exist
    ("headrace.plugins.connector_config", "headrace.plugins.registry"),
    ("headrace.plugins.creation", "headrace.plugins.registry"),
    # traces and error messages mask the secrets of the process
    ("headrace.plugins.creation", "headrace.metrics.logs"),
    ("headrace.runtime.traces", "headrace.metrics.logs"),
    # they import only the modules of messages, and the optional packages for checksums and compression
    ("headrace_broker.protocol.apis", "importlib"),
    ("headrace_broker.protocol.messages", "importlib"),
    ("headrace_broker.records._extensions", "importlib"),
    # only the names of the signals
    ("headrace_connectors.lakehouse.error_messages", "signal"),
)
"""Imports that the check ignores."""

_PROMISE = re.compile(r"This (module|package) does no I/O\b")
_EXEMPTION = re.compile(r"\bThis module does I/O\b")
_OTHER_WORDS = re.compile(r"\b(no|without|any) I/O\b", re.IGNORECASE)


def violations(roots: Mapping[str, Path] = ROOTS, exceptions: Sequence[tuple[str, str]] = EXCEPTIONS) -> Iterator[str]:
    """Yield a line for each module that breaks its promise, and for each docstring that words it differently."""
    trees = dict(_parse(roots))
    docstrings = {module: " ".join((ast.get_docstring(tree) or "").split()) for module, tree in trees.items()}
    for module, text in docstrings.items():
        if _OTHER_WORDS.search(_PROMISE.sub("", text)):
            yield f'{module}: write the promise of the docstring as "This module does no I/O." or "This package …"'
    graph = grimp.build_graph(
        *roots, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    for importer, imported in exceptions:
        if imported in graph.find_modules_directly_imported_by(importer):
            graph.remove_import(importer=importer, imported=imported)
        else:
            yield f"{importer} does not import {imported}: remove this exception"
    pure = {module for module in docstrings if is_pure(module, docstrings)}
    for module in sorted(pure):
        chain = _import_of_io(graph, module, pure)
        if chain:
            yield f"{module} promises to do no I/O, but imports {' -> '.join(chain)}"
        for use in _uses_of_io(trees[module]):
            yield f"{module} promises to do no I/O, but line {use.lineno} uses {ast.unparse(use)}"


def is_pure(module: str, docstrings: Mapping[str, str]) -> bool:
    """Return whether a module, or a package that contains it, promises to do no I/O."""
    if _PROMISE.search(docstrings[module]):
        return True
    if _EXEMPTION.search(docstrings[module]):
        return False
    parts = module.split(".")
    packages = (".".join(parts[:length]) for length in range(1, len(parts)))
    promises = (_PROMISE.search(docstrings.get(package, "")) for package in packages)
    return any(promise is not None and promise[1] == "package" for promise in promises)


def _parse(roots: Mapping[str, Path]) -> Iterator[tuple[str, ast.Module]]:
    """Yield the name and the syntax tree of each module."""
    for package, folder in roots.items():
        for path in sorted((folder / package).rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def _uses_of_io(tree: ast.Module) -> Iterator[ast.Name | ast.Attribute]:
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.Name) and node.id in FORBIDDEN_FUNCTIONS
        is_method = isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_METHODS
        if isinstance(node, ast.Name | ast.Attribute) and (is_function or is_method):
            yield node


def _import_of_io(graph: grimp.ImportGraph, module: str, pure: set[str]) -> list[str]:
    """Return the shortest chain of imports from a module to a forbidden one, or an empty list.

    Other pure modules are not followed, because they are checked themselves.
    """
    chains = deque([[module]])
    seen = {module, *pure}
    while chains:
        chain = chains.popleft()
        for imported in sorted(_imports(graph, chain[-1]) - seen):
            if imported in FORBIDDEN:
                return [*chain[1:], imported]
            seen.add(imported)
            if not graph.is_module_squashed(imported):
                chains.append([*chain, imported])
    return []


def _imports(graph: grimp.ImportGraph, module: str) -> set[str]:
    """Return the modules that a module imports, and the packages that contain them, because Python imports both."""
    imported = graph.find_modules_directly_imported_by(module)
    parents = {name.rpartition(".")[0] for name in imported if "." in name}
    return imported | {parent for parent in parents if parent in graph.modules}


def main() -> int:
    """Print the violations. The exit code is 1 if there are any."""
    lines = list(violations())
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
