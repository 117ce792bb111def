"""Tests of the string format of UUIDs."""

from __future__ import annotations

import pytest

from headrace_broker.protocol.uuid_text import decode_uuid, encode_uuid


def test_uuid_text_is_url_safe_base64() -> None:
    assert decode_uuid("MkU3OEVBNTcwNTJENDM2Qg") == b"2E78EA57052D436B"
    assert encode_uuid(b"2E78EA57052D436B") == "MkU3OEVBNTcwNTJENDM2Qg"
    for wrong in ("abc", "MkU3OEVBNTcwNTJENDM2", "a"):
        with pytest.raises(ValueError, match=r"16 bytes|base64"):
            decode_uuid(wrong)
