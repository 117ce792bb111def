"""Recognizes clients that use TLS, HTTP or SASL on a listener that supports only Kafka's protocol without SASL.

A client's security.protocol, or the address that it connects to, is usually wrong in this case, and the log line
says so. Such a client connects again and again, so the log lines about each protocol are rate-limited.
"""

from __future__ import annotations

from collections import defaultdict
from time import monotonic

from headrace_broker.server.log_throttle import LogThrottle

_TLS_HANDSHAKE = b"\x16\x03"  # content type handshake, major version 3
_HTTP_METHODS = (b"GET ", b"PUT ", b"HEAD", b"POST", b"PATC", b"DELE", b"OPTI", b"CONN", b"TRAC", b"PRI ")


class ForeignProtocols:
    """The clients of one node that use other protocols than its listeners."""

    def __init__(self) -> None:
        self._throttles: defaultdict[str, LogThrottle] = defaultdict(LogThrottle)

    def explain_invalid_size(self, start: bytes, listener: str) -> str | None:
        """Return why the first four bytes of a request are not a valid size, or None if the protocol is unknown.

        The text is empty if the log lines about this protocol are rate-limited at the moment.
        """
        if start.startswith(_TLS_HANDSHAKE):
            text = (
                f"the client uses TLS, but listener {listener} is a PLAINTEXT listener: set the client's "
                "security.protocol to PLAINTEXT"
            )
            return self._limit("TLS", text)
        if start in _HTTP_METHODS:
            text = (
                f"the client sent an HTTP request, but listener {listener} serves only Kafka's protocol: check the "
                "client's address"
            )
            return self._limit("HTTP", text)
        return None

    def explain_sasl(self, mechanism: str, listener: str) -> str:
        """Return why the broker refuses a SaslHandshake request, or an empty text if the log line is rate-limited."""
        return self._limit(
            "SASL",
            f"the client requested SASL mechanism {mechanism[:100]!r}, but listener {listener} is a PLAINTEXT listener "
            "without SASL: set the client's security.protocol to PLAINTEXT",
        )

    def _limit(self, protocol: str, text: str) -> str:
        return text if self._throttles[protocol].should_log(monotonic()) else ""
