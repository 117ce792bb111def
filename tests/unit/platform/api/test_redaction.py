from __future__ import annotations

import pytest

from headrace.api.config import Config, key
from headrace.api.errors import ConfigError
from headrace.api.redaction import redact_passwords


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("jdbc:postgresql://u:top@h:1/db", "jdbc:postgresql://u:****@h:1/db"),
        ("jdbc:mysql://h/?user=u&password=top&x=1", "jdbc:mysql://h/?user=u&password=****&x=1"),
        ("jdbc:sqlserver://h;user=sa;password=top;x=1", "jdbc:sqlserver://h;user=sa;password=****;x=1"),
        ("jdbc:oracle:thin:scott/top@h:1521:XE", "jdbc:oracle:thin:scott/****@h:1521:XE"),
        ("jdbc:oracle:thin:@//h:1521/XE", "jdbc:oracle:thin:@//h:1521/XE"),
        ("http://u:top@proxy:3128, http://other", "http://u:****@proxy:3128, http://other"),
        ("http://h:9200/a@b", "http://h:9200/a@b"),
    ],
)
def test_passwords_in_urls_are_replaced_with_asterisks(url: str, redacted: str) -> None:
    assert redact_passwords(url) == redacted
    assert str(ConfigError("k", [url])) == f"Invalid value [{redacted}] for configuration k"


def test_error_of_a_key_with_a_validator_contains_no_password_of_a_url() -> None:
    def refuse(url: str) -> None:
        raise ValueError("is not reachable")

    class Example(Config):
        url: str = key("url", validator=refuse)

    (error,) = Example.errors({"url": "http://u:top@h"})
    assert str(error) == "Invalid value http://u:****@h for configuration url: is not reachable"
