"""The response header `Warning` with the warnings about a connector's configuration. This module does no I/O.

The responses to changes of a connector have exactly the bodies of Kafka Connect: Apache Kafka's workers forward
requests to headrace's workers, and reject a response that contains an unknown field. Every client accepts an unknown
header. The format is that of RFC 7234, section 5.5: `299 headrace "Unknown configuration key topicc is ignored"`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TEXT_LENGTH_MAX = 500
_LENGTH_MAX = 2_000
"""The maximum length of the header, because proxies reject responses with more than 4 or 8 KB of headers."""


def warning_header(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header with these warnings, or no header if there are none. The last value counts omitted warnings."""
    values: list[str] = []
    for text in warnings:
        value = _value(text)
        if sum(map(len, values)) + len(value) > _LENGTH_MAX:
            break
        values.append(value)
    if omitted := len(warnings) - len(values):
        values.append(_value(f"{omitted} more warning(s): validate the configuration to read them"))
    return {"Warning": ", ".join(values)} if values else {}


def _value(text: str) -> str:
    """Return one warning with a quoted string of printable ASCII characters."""
    if len(text) > _TEXT_LENGTH_MAX:
        text = text[:_TEXT_LENGTH_MAX] + "..."
    printable = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    quoted = re.sub(r"[^ -~]", "?", printable).replace("\\", r"\\").replace('"', r"\"")
    return f'299 headrace "{quoted}"'
