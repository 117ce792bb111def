"""Removes passwords from URLs in errors and log lines. This module does no I/O."""

from __future__ import annotations

import re

_PARAMETER = re.compile(r"(?i)((?:password|pwd)=)[^&;\s]*")
_USER_INFO = re.compile(r"(://[^/@:\s]*:)[^/@\s]*@")
_ORACLE = re.compile(r"(?i)(jdbc:oracle:[a-z]+:[^/@\s]*/)[^@\s]*@")


def redact_passwords(text: str) -> str:
    """Replace the passwords in the URLs of a text with asterisks."""
    for pattern, replacement in ((_PARAMETER, r"\1****"), (_USER_INFO, r"\1****@"), (_ORACLE, r"\1****@")):
        text = pattern.sub(replacement, text)
    return text
