from __future__ import annotations

import pytest

from headrace.api.errors import ConfigError
from headrace_transforms.field_paths import parse_path


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("foo", ("foo",)),
        ("foo.bar.baz", ("foo", "bar", "baz")),
        ("foo.", ("foo", "")),
        ("", ()),
        ("`foo.bar`.baz", ("foo.bar", "baz")),
        ("a.`foo.bar`", ("a", "foo.bar")),
        ("`a`b.c`.d", ("a`b.c", "d")),
        ("`a\\`.b`.c", ("a`.b", "c")),
        ("foo`bar.baz", ("foo`bar", "baz")),
    ],
)
def test_v2_field_path_is_split_at_dots_outside_backticks(text: str, steps: tuple[str, ...]) -> None:
    assert parse_path(text, "V2", "field") == steps


def test_v1_field_path_with_dots_is_a_single_field_name() -> None:
    assert parse_path("a.`b", "v1", "field") == ("a.`b",)


@pytest.mark.parametrize("text", ["`a", "a.`b", "`a\\`"])
def test_v2_field_path_with_an_unclosed_backtick_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="Incomplete backtick pair in path"):
        parse_path(text, "V2", "field")
