"""The faults of a `KafkaBroker`: which requests fail, how, and how often.

A fault applies to the requests of one API. At most one fault applies to a request: the fault that was added first among
those that have not ended. The test's thread adds faults, and the broker's thread applies them.
"""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass
from types import TracebackType

from headrace.testing.error_responses import APIS_WITH_ERRORS
from headrace_broker.protocol.apis import API, Api
from headrace_broker.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Fail:
    """An effect of a fault: the proxy responds with this error, and the broker does not receive the request."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Delay:
    """An effect of a fault: the proxy delivers the broker's response `seconds` later than it receives the response."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Disconnect:
    """An effect of a fault: the proxy closes the client's connection.

    The connection is closed before the broker receives the request, or instead of delivering the response.
    """

    before_request: bool


class Fault:
    """An effect on the requests of one API.

    The fault ends after `times` requests, when its `with` block ends, or when `remove` is called.
    """

    def __init__(self, faults: FaultList, api: Api, effect: Fail | Delay | Disconnect, times: int | None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times={times}: the number of requests must be at least 1, or None for all requests")
        self.api = api
        self.effect = effect
        self._faults = faults
        self._remaining = times
        self._applied = 0
        self._changed = threading.Condition()

    @property
    def applied(self) -> int:
        """The number of requests to which this fault has been applied."""
        return self._applied

    def remove(self) -> None:
        """End this fault. Has no effect if the fault has already ended."""
        self._faults.remove(self)

    def wait(self, times: int = 1, timeout: float = 10.0) -> None:
        """Wait until this fault has been applied to this many requests. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._applied >= times, timeout):
                raise TimeoutError(
                    f"{self}: the fault was applied to {self._applied} of {times} requests within {timeout:g} s; "
                    f"check that the client sends {self.api.name} requests"
                )

    def use(self) -> bool:
        """Count one request to which this fault applies. Return False if this request is the last one."""
        if self._remaining is not None:
            self._remaining -= 1
        return self._remaining != 0

    def record_applied(self) -> None:
        """Count a request to which this fault has been applied, and wake up the threads in `wait`."""
        with self._changed:
            self._applied += 1
            self._changed.notify_all()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"{self.effect} for {self.api.name}"


class FaultList:
    """The current faults of one broker, in the order in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, api: str | int, effect: Fail | Delay | Disconnect, times: int | None) -> Fault:
        """Add a fault with `effect` for the next `times` requests of `api`, or for all requests if `times` is None.

        Raises ValueError for an unknown API, and for `Fail` with an API that does not support it.
        """
        found = find_api(api)
        if isinstance(effect, Fail) and found.key not in APIS_WITH_ERRORS:
            supported = ", ".join(sorted(API[key].name for key in APIS_WITH_ERRORS))
            raise ValueError(
                f"fail({found.name!r}): error injection is not supported for this API, only for {supported}; "
                "delay() and disconnect() support every API"
            )
        fault = Fault(self, found, effect, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Remove a fault, unless it has been removed before."""
        with self._lock:
            if fault in self._faults:
                self._faults.remove(fault)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def find(self, api_key: int) -> Fault | None:
        """Return the fault that applies to the next request of this API, or None. This call does not count as a use."""
        with self._lock:
            return next((fault for fault in self._faults if fault.api.key == api_key), None)

    def use(self, fault: Fault) -> None:
        """Count one request to which `fault` applies. If this request is the last one, remove `fault` from the list."""
        with self._lock:
            if not fault.use() and fault in self._faults:
                self._faults.remove(fault)


def find_api(api: str | int) -> Api:
    """Return the API with this name or API key. Raises ValueError."""
    if not isinstance(api, str):
        if api not in API:
            raise ValueError(f"{api} is not a Kafka API key")
        return API[api]
    names = {each.name: each for each in API.values()}
    if api not in names:
        similar = difflib.get_close_matches(api, names, n=1, cutoff=0.5)
        raise ValueError(
            f"{api!r} is not the name of a Kafka API" + (f"; did you mean {similar[0]!r}?" if similar else "")
        )
    return names[api]


def find_error(error: str | int) -> ErrorCode:
    """Return the error with this name or code. Raises ValueError."""
    if not isinstance(error, str):
        if error not in set(ErrorCode) - {ErrorCode.NONE}:
            raise ValueError(f"{error} is not an error code of Kafka's protocol")
        return ErrorCode.from_code(error)
    if error not in ErrorCode.__members__ or error == "NONE":
        similar = difflib.get_close_matches(error, ErrorCode.__members__, n=1, cutoff=0.5)
        raise ValueError(
            f"{error!r} is not the name of a Kafka error" + (f"; did you mean {similar[0]!r}?" if similar else "")
        )
    return ErrorCode[error]
