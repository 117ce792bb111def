"""The result of one controller operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace_broker.protocol.metadata_records import MetadataRecord

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[Response]):
    """Records to append as one batch (all or none), and the response to send after they are committed."""

    response: Response
    records: list[MetadataRecord] = field(default_factory=list)
