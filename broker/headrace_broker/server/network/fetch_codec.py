"""Decodes the header and the body of a Fetch request with one call."""

from __future__ import annotations

from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.framing import parse_request_header
from headrace_broker.protocol.messages.fetch import FetchRequest


def read_fetch_request(frame: memoryview, version: int) -> FetchRequest:
    """Decode a Fetch request. Raises ProtocolError if the frame is malformed."""
    request, end = decoder(FetchRequest, version)(frame, parse_request_header(frame).body_offset)
    if end != len(frame):
        raise ProtocolError(f"Fetch request v{version} has {len(frame)} bytes, but its fields end at byte {end}")
    return request
