"""The table of APIs: key, name, versions, and from which version on they are flexible.

The versions are those of Kafka 4.4 that are stable. Which of them a broker serves is what its handlers declare.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headrace_broker.protocol.notation import Request, Response


class ApiKey(IntEnum):
    """The number of an API on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22


class Api:
    """One API; `flexible_version` is the first version with compact lengths and tagged fields, if there is one."""

    def __init__(
        self, key: ApiKey, name: str, min_version: int, max_version: int, flexible_version: int | None
    ) -> None:
        self.key = key
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_version = flexible_version

    def __repr__(self) -> str:
        return f"<{self.name} ({int(self.key)}) {self.min_version}-{self.max_version}>"

    @cached_property
    def request(self) -> type[Request[Any]]:
        """The class of its requests (loads the API's messages)."""
        return cast("type[Request[Any]]", getattr(_messages(), f"{self.name}Request"))

    @cached_property
    def response(self) -> type[Response]:
        """The class of its responses (loads the API's messages)."""
        return cast("type[Response]", getattr(_messages(), f"{self.name}Response"))

    def is_flexible(self, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields."""
        return self.flexible_version is not None and version >= self.flexible_version

    def request_header_version(self, version: int) -> int:
        """Return 2 (with tagged fields) or 1."""
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """Return 1 (with tagged fields) or 0; ApiVersions always answers with 0, before versions are agreed upon."""
        return 1 if self.is_flexible(version) and self.key != ApiKey.API_VERSIONS else 0


def _messages() -> Any:
    return import_module("headrace_broker.protocol.messages")


_TABLE = (
    Api(ApiKey.PRODUCE, "Produce", 3, 13, 9),
    Api(ApiKey.FETCH, "Fetch", 4, 18, 12),
    Api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6),
    Api(ApiKey.METADATA, "Metadata", 0, 13, 9),
    Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
    Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 5, 3),
    Api(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
    Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
)

API: dict[int, Api] = {int(api.key): api for api in _TABLE}
"""The APIs by their number."""
