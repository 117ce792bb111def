from __future__ import annotations

import pytest

from headrace.data.java_regex import JavaPattern


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"test-.*", "test-1", True),
        (r"test", "test-1", False),
        (r"a|ab", "ab", True),
        (r"a\.b\Qx.y\E", "a.bx.y", True),
        (r"a\.b\Qx.y\E", "a.bxzy", False),
        (r"\p{Alpha}+", "abc", True),
        (r"\p{Alpha}+", "äbc", False),
        (r"\p{L}+", "äbc", True),
        (r"[\p{Lower}&&[^b]]+", "acd", True),
        (r"[\p{Lower}&&[^b]]+", "abcd", False),
        (r"[a-c[x-z]]+", "ay", True),
        (r"\w+", "ä", False),
        (r"[\w-]+", "a-1", True),
        (r"[^\d]+", "abc", True),
        (r"\d+\z", "12", True),
        (r"x*+x", "xx", False),
        (r"(?i)TOPIC", "topic", True),
        (r"(?!__).*", "__consumer_offsets", False),
    ],
)
def test_java_pattern_matches_a_text_only_if_the_whole_text_matches(pattern: str, text: str, matches: bool) -> None:
    assert JavaPattern(pattern).matches(text) is matches


@pytest.mark.parametrize(
    ("pattern", "text", "replacement", "result"),
    [
        (r"(.*)-(\d)", "topic-1", r"$2_$1\$x", "1_topic$x"),
        (r"a|ab", "ab", "X", "Xb"),
        (r"(?<word>\w+)\.(.*)", "db.users", "${word}_$2", "db_users"),
        (r"(a)(b)", "ab", "$12", "a2"),
        (r"(a)|b", "b", "<$1>", "<>"),
    ],
)
def test_java_pattern_expands_group_references_in_a_replacement(
    pattern: str, text: str, replacement: str, result: str
) -> None:
    assert JavaPattern(pattern).replace_first(text, replacement) == result


def test_java_pattern_rejects_invalid_patterns_and_replacements() -> None:
    with pytest.raises(ValueError, match="Invalid regex"):
        JavaPattern("(")
    for replacement in ("$1", "${name}", "a$", "a\\"):
        with pytest.raises(ValueError, match="group"):
            JavaPattern("a").check_replacement(replacement)
