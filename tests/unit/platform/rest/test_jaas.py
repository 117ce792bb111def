"""Tests of JAAS files, and of the Java options that name them."""

from __future__ import annotations

import pytest

from headrace.rest import jaas
from headrace.rest.jaas import LoginModule

MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"


def test_example_from_kafkas_documentation_is_parsed() -> None:
    text = f"""
    KafkaConnect {{
        {MODULE} required
        file="/mnt/secret/credentials.properties";
    }};
    """
    expected = {"KafkaConnect": [LoginModule(MODULE, "required", {"file": "/mnt/secret/credentials.properties"})]}
    assert jaas.parse(text, {}, "jaas.conf") == expected


def test_jaas_file_may_contain_comments_several_modules_and_unquoted_values() -> None:
    text = r"""// first
    A { a.B optional; /* a
    comment; */ c.D$E SUFFICIENT debug=true file="${user.home}/\"x\"" ; };
    other{};
    """
    assert jaas.parse(text, {"user.home": "/home/u"}, "jaas.conf") == {
        "A": [
            LoginModule("a.B", "optional", {}),
            LoginModule("c.D$E", "sufficient", {"debug": "true", "file": '/home/u/"x"'}),
        ],
        "other": [],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A {", "jaas.conf, line 1: expected }, found 'the end of the file'"),
        ("A {\n};\nB x", "jaas.conf, line 3: expected {, found 'x'"),
        ("A { b.C maybe; };", "expected one of required, requisite, sufficient, optional, found 'maybe; };'"),
        ("A { b.C required file; };", "expected =, found '; };'"),
        ("A { b.C required }", "expected an option or ;, found '}'"),
        ("A { b.C required; }", "expected ;, found 'the end of the file'"),
        ('A { b.C required file="x', "expected a word, a quoted text or one of { } ; =, found"),
        ('A { b.C required file="${x.y}"; };', "the system property x.y is not set; replace ${x.y} with its value"),
    ],
)
def test_error_for_invalid_jaas_syntax_contains_the_file_and_the_expected_text(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"jaas\.conf") as caught:
        jaas.parse(text, {}, "jaas.conf")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, None),
        ({"KAFKA_OPTS": "-Xmx1G -Djava.security.auth.login.config=/a/jaas.conf -Dx=y"}, "/a/jaas.conf"),
        ({"KAFKA_OPTS": '"-Djava.security.auth.login.config=/a b/jaas.conf"'}, "/a b/jaas.conf"),
        ({"KAFKA_OPTS": "-Djava.security.auth.login.config==file:/a/jaas%20.conf"}, "/a/jaas .conf"),
        (
            {
                "JAVA_TOOL_OPTIONS": "-Djava.security.auth.login.config=/tool",
                "KAFKA_OPTS": "-Djava.security.auth.login.config=/kafka",
            },
            "/kafka",
        ),
        ({"JAVA_TOOL_OPTIONS": "-Djava.security.auth.login.config=/tool '"}, "/tool"),
    ],
)
def test_path_of_the_jaas_file_is_read_from_java_options_in_the_environment(
    environment: dict[str, str], path: str | None
) -> None:
    assert jaas.configuration_file(jaas.system_properties(environment)) == path
