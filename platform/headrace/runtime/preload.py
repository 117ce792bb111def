"""The work that the fork server does before it forks: all work that tasks have in common and that starts no thread.

The fork server imports the modules that a task needs, compiles the client's codecs, and finds the installed plug-ins.
Its children share the memory of the results.

Plug-ins are not imported in advance. When a connector is configured, the fork server imports the modules that its class
lists in `shared_modules`.
"""

from __future__ import annotations

import gc
import importlib
import logging
import threading

log = logging.getLogger(__name__)

_MODULES = (
    "asyncio",
    "uvloop",
    "msgspec",
    "regex",
    "headrace.metrics.logs",
    "headrace.runtime.host",
    "headrace.runtime.worker_source_task",
    "headrace.runtime.worker_sink_task",
    "headrace.runtime.worker_self_reading_sink_task",
    "headrace.runtime.worker_connector",
    "headrace.converters.json_converter",
    "headrace.converters.simple_header_converter",
    "headrace.converters.string_converter",
    "headrace_broker.client.producer",
    "headrace_broker.client.consumer",
    "headrace_broker.client.admin",
)

_POOL_BYTES = 16 * 1024  # CPython's pymalloc
_BLOCK_STEP, _BLOCK_MIN, _BLOCK_MAX = 16, 48, 512
_BYTES_OVERHEAD = b"".__sizeof__()
_BLOCKS_MAX = 20_000  # per size; enough for 10 MB, and a limit if another memory allocator is used


def load() -> None:
    """Import the modules.

    Raises RuntimeError if a module has started a thread, because forking would be unsafe.
    """
    for name in _MODULES:
        importlib.import_module(name)
    from headrace.plugins import registry  # not at the top: the fork server imports this module before it is supervised
    from headrace_broker.client.codecs import compile_codecs

    compile_codecs()
    registry.find_installed()
    if threading.active_count() != 1:
        names = [thread.name for thread in threading.enumerate()]
        raise RuntimeError(f"a preloaded module started threads: {names}")


def fill_memory_pools() -> list[bytes]:
    """Allocate the free blocks of Python's partly used memory pools. The caller must keep the returned list.

    New objects of a child are then in new pools. Otherwise, they would be in many shared pages, and the child would
    have to copy each of these pages.
    """
    blocks: list[bytes] = []
    for size in range(_BLOCK_MIN, _BLOCK_MAX + 1, _BLOCK_STEP):
        per_pool = _POOL_BYTES // size
        successive, last = 0, 0
        for _ in range(_BLOCKS_MAX):
            blocks.append(bytes(size - _BYTES_OVERHEAD))
            successive = successive + 1 if id(blocks[-1]) == last + size else 0
            last = id(blocks[-1])
            if successive >= per_pool - 2:  # the blocks of a new pool are allocated in the order of their addresses
                break
    return blocks


def try_import(module: str) -> bool:
    """Import a shared module in a process that exits afterwards. Return whether the fork server can import it.

    If it cannot be imported, the process that needs it reports the error.
    """
    threads = threading.active_count()
    try:
        importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - a plug-in's module does what it likes
        log.debug("Module %s of shared_modules cannot be imported: %s: %s", module, type(error).__name__, error)
        return False
    if threading.active_count() != threads:
        log.error("Module %s starts a thread when imported: plug-ins must not list it in shared_modules", module)
        return False
    return True


def share(module: str) -> None:
    """Import a shared module for later children, after `try_import` has succeeded in another process."""
    try_import(module)
    gc.collect()
    gc.freeze()
