"""The fork server: a single-threaded process that has completed all imports and forks the task and connector processes.

    python -m headrace.runtime.fork_server CONTROL_FD WORKER_PID

Guarantees:
- The only plug-in code that the fork server runs is the import of modules in `Connector.shared_modules`. A child
  imports each module first, and the fork server imports it only if the child succeeded. If the import in the fork
  server hangs nevertheless, a timer ends the fork server, and the worker starts a new one.
- When the worker dies for any reason, the fork server kills all its descendants, including orphans, and exits. There is
  one exception: during the import of a shared module, the kernel kills the fork server and its children, but not the
  processes that these children have started.
- When a child exits, the fork server kills the processes that the child has left.
- If the fork server itself dies, the kernel sends SIGKILL to its children.

The fork server runs tasks as a warm-up (`warm_up`), so that its children share more memory. The warm-up consists of
steps that take some milliseconds. If no message arrives for three seconds, the fork server runs one step after another
until a message arrives. After the eighth child, it runs all remaining steps at once. The first connectors of a new
worker therefore do not wait for the warm-up, but their processes use a few megabytes more.

The control socket is SOCK_SEQPACKET; each packet is one JSON message. The worker sends `{"spawn": n, "name": text}`
with the child's end of a socket pair as ancillary data, `{"share": module}` and `{"kill": pid}`. The fork server sends
`{"ready": pid}`, `{"spawned": n, "pid": pid}`, `{"failed": n, "error": text}`, `{"exited": pid, "status": code}` (a
negative status is a signal), and `{"shared": module}` after it has imported the module or has decided not to.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from headrace.runtime import malloc, preload, process_tree
from headrace.runtime.group_signals import GROUP_SIGNALS

log = logging.getLogger(__name__)

MESSAGE_SIZE_MAX = 4096
SHARE_TIMEOUT_S = 30
"""How long the import of a shared module may take."""
_NO_WARM_UP = "--no-warm-up"  # followed by the pids of the children
_FORKS_WITHOUT_WARM_UP = 8  # for two or three connectors: 2 validations, and 2 processes per connector
_IDLE_S = 3.0
_GC_THRESHOLDS = (50_000, 20, 50)  # a batch creates and drops thousands of containers


class ForkServer:
    """The main loop: handles messages from the worker and the exits of child processes."""

    def __init__(
        self,
        control: socket.socket,
        worker_pid: int,
        children: Iterable[int] = (),
        warm_up: Iterator[Any] | None = None,
    ) -> None:
        """Each iteration of `warm_up` runs a step of the warm-up."""
        self._control = control
        self._worker_pid = worker_pid
        self._children = set(children)
        self._importing: dict[int, str] = {}  # children that import a shared module to find out whether it is safe
        self._forks = 0
        self._warm_up = warm_up
        self._filled: list[bytes] = []

    def run(self) -> None:
        """Serve until the worker exits, then kill all descendants."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # the kernel sends SIGTERM when the worker dies; a SIGTERM from another process has no effect
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole group; only the worker handles it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        process_tree.signal_at_death_of(self._worker_pid, signal.SIGTERM)
        self._freeze()
        self._reap()
        self._send({"ready": os.getpid()})
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            idle_since = time.monotonic()
            while os.getppid() == self._worker_pid:
                idle_s = time.monotonic() - idle_since
                ready = {key.fd for key, _ in selector.select(None if self._warm_up is None else _IDLE_S - idle_s)}
                if wake_read in ready:
                    os.read(wake_read, 65536)
                self._reap()
                if self._control.fileno() in ready:
                    if not self._serve_one():
                        break
                    idle_since = time.monotonic()
                if self._is_warm_up_due(idle_since):
                    self._continue_warm_up(wake_write)
        process_tree.kill_descendants()

    def _is_warm_up_due(self, idle_since: float) -> bool:
        if self._warm_up is None:
            return False
        return self._forks >= _FORKS_WITHOUT_WARM_UP or time.monotonic() - idle_since >= _IDLE_S

    def _continue_warm_up(self, wake_write: int) -> None:
        """Run a step of the warm-up or, from the eighth child on, all remaining steps while the worker lives."""
        while self._warm_up is not None and os.getppid() == self._worker_pid:
            self._run_step(self._warm_up)
            signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)  # the step's event loop removed it
            self._reap()
            if self._forks < _FORKS_WITHOUT_WARM_UP:
                return

    def _run_step(self, warm_up: Iterator[Any]) -> None:
        """Run a step of the warm-up.

        If it fails, it may have left threads, so start this program again without warm-up.

        The new program has the same process id, so it keeps the children.
        """
        try:
            next(warm_up)
        except StopIteration:
            self._warm_up = None
            self._freeze()
        except Exception as error:  # noqa: BLE001 - any failure of the warm-up
            logging.disable(logging.NOTSET)
            log.warning(
                "Fork server: the warm-up of tasks failed (%s: %s), so task processes use more memory",
                type(error).__name__,
                error,
            )
            for module in self._importing.values():
                self._send({"shared": module})  # the new program does not know that the worker waits for it
            signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)  # until `run` of the new program handles them
            command = [sys.executable, "-m", "headrace.runtime.fork_server", *sys.argv[1:3], _NO_WARM_UP]
            os.execv(sys.executable, [*command, *map(str, (*self._children, *self._importing))])

    def _freeze(self) -> None:
        """Exclude all objects from garbage collection, which would write to shared memory and thereby copy it."""
        gc.collect()
        if self._warm_up is None:
            self._filled = preload.fill_memory_pools()
        gc.freeze()

    def _serve_one(self) -> bool:
        """Handle one message. Return False if the worker has closed its end."""
        try:
            packet, descriptors, _flags, _address = socket.recv_fds(self._control, MESSAGE_SIZE_MAX, 1)
        except ConnectionError:
            return False
        if not packet:
            return False
        match json.loads(packet):
            case {"spawn": number, "name": name}:
                self._spawn(number, name, descriptors[0])
            case {"share": module}:
                self._try_import(module)
            case {"kill": pid} if pid in self._children:
                process_tree.kill_tree(pid)
        return True

    def _try_import(self, module: str) -> None:
        """Import a shared module in a child. `_reap` handles the result."""
        try:
            pid = os.fork()
        except OSError:
            self._send({"shared": module})
            return
        if pid == 0:
            is_sound = False
            try:
                self._prepare_child("import")
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(SHARE_TIMEOUT_S)
                is_sound = preload.try_import(module)
            finally:
                os._exit(0 if is_sound else 1)
        self._importing[pid] = module

    def _share(self, module: str, status: int) -> None:
        """Import a shared module if a child could import it. If the import hangs, a timer ends this process."""
        if status == -signal.SIGALRM:
            log.error(
                "Module %s: its import takes longer than %d s; plug-ins must not list it in shared_modules",
                module,
                SHARE_TIMEOUT_S,
            )
        elif status or os.getppid() != self._worker_pid:
            log.debug("Module %s of shared_modules is not shared: its import ended with status %d", module, status)
        else:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SHARE_TIMEOUT_S)
            process_tree.signal_at_death_of(self._worker_pid, signal.SIGKILL)
            preload.share(module)
            process_tree.signal_at_death_of(self._worker_pid, signal.SIGTERM)
            signal.alarm(0)
        self._send({"shared": module})

    def _spawn(self, number: int, name: str, channel: int) -> None:
        self._forks += 1
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes: only this child fails
            os.close(channel)
            self._send({"failed": number, "error": f"cannot start a process for {name}: {error.strerror}"})
            return
        if pid == 0:
            self._become_child(name, channel)
        os.close(channel)
        self._children.add(pid)
        self._send({"spawned": number, "pid": pid})

    def _become_child(self, name: str, channel: int) -> NoReturn:
        code = 1
        try:
            self._prepare_child(name)
            gc.set_threshold(*_GC_THRESHOLDS)
            malloc.keep_freed_memory()
            from headrace.runtime import host

            host.serve(socket.socket(fileno=channel))
            code = 0
        except BaseException:  # noqa: BLE001 - a fork must never return into the server's loop
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _prepare_child(self, name: str) -> None:
        signal.set_wakeup_fd(-1)
        process_tree.signal_at_death_of(os.getppid())
        process_tree.adopt_orphans()  # when this child dies, the fork server adopts these orphans
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker tells a child when to stop
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process_tree.name_process(name)
        self._control.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:
                self._children.discard(pid)
                self._send({"exited": pid, "status": os.waitstatus_to_exitcode(status)})
                self._kill_orphans()
            elif (module := self._importing.pop(pid, None)) is not None:
                self._kill_orphans()
                self._share(module, os.waitstatus_to_exitcode(status))

    def _kill_orphans(self) -> None:
        """Kill the processes that a dead child has left.

        This process has adopted them, because it is their sub-reaper.
        """
        process_tree.kill_descendants(spare=self._children | self._importing.keys())

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionError):
            return  # the worker has exited; the next read returns end-of-file


def main() -> None:
    """Import all modules that a child needs, and serve."""
    control, worker_pid = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    is_restarted = _NO_WARM_UP in sys.argv  # after a failed warm-up; there may be children, whose orphans `run` kills
    # First, because the worker may die during the imports.
    process_tree.signal_at_death_of(worker_pid, signal.SIGTERM if is_restarted else signal.SIGKILL)
    process_tree.adopt_orphans()
    process_tree.name_process("headrace-forks")
    from headrace.metrics import logs

    logs.configure_logging()
    preload.load()
    from headrace.runtime import code_copies, warm_up

    if is_restarted:
        ForkServer(control, worker_pid, map(int, sys.argv[4:])).run()
    else:
        ForkServer(control, worker_pid, warm_up=warm_up.steps(code_copies.CodeCopies())).run()


if __name__ == "__main__":
    main()
