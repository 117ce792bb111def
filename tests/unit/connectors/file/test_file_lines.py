"""Tests that LineSplitter returns the same lines for any block boundaries, and counts its position in bytes."""

from __future__ import annotations

import pytest

from headrace_connectors.file.lines import LineSplitter
from support.cpu_time import LINEAR_GROWTH_MAX, growth

TEXT = "one\ntwo\r\nthree\rvier äö\n\n€\r\r\nlast".encode()
LINES = ["one", "two", "three", "vier äö", "", "€", ""]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100])
@pytest.mark.parametrize("block_size", range(1, len(TEXT) + 1))
def test_line_splitter_returns_the_same_lines_for_any_block_size(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, block_size: int
) -> None:
    monkeypatch.setattr("headrace_connectors.file.lines.CHUNK_BYTES", chunk_bytes)
    splitter = LineSplitter()
    found: list[str] = []
    for start in range(0, len(TEXT), block_size):
        splitter.feed(TEXT[start : start + block_size])
        while splitter.has_lines:
            lines = splitter.next_lines(2)
            assert len(lines) == len(lines.items()) <= 2
            assert lines.encoded() == [line.encode() for line in lines.items()]
            found += lines.items()
    assert found == LINES
    assert splitter.position == len(TEXT) - len("last")
    assert splitter.partial_bytes == len("last")


def test_line_splitter_that_starts_at_a_position_in_the_file_returns_the_remaining_lines() -> None:
    whole = LineSplitter()
    whole.feed(TEXT)
    for count in range(1, len(LINES)):
        whole.next_lines(1)
        resumed = LineSplitter(whole.position)
        resumed.feed(TEXT[whole.position :])
        assert resumed.next_lines(100).items() == LINES[count:]


def test_line_splitter_counts_its_position_in_bytes_if_lines_contain_non_ascii_text() -> None:
    splitter = LineSplitter()
    splitter.feed("ä\nöö\n".encode())
    assert splitter.next_lines(1).items() == ["ä"]
    assert splitter.position == 3
    assert splitter.next_lines(5).items() == ["öö"]
    assert splitter.position == 8


def test_invalid_utf_8_in_a_line_is_replaced_and_the_position_counts_the_original_bytes() -> None:
    splitter = LineSplitter()
    splitter.feed(b"a\xffb\nc\n")
    lines = splitter.next_lines(1)
    assert lines.items() == ["a\ufffdb"]
    assert lines.encoded() == ["a\ufffdb".encode()]
    assert splitter.position == 4


def test_line_splitter_does_not_split_the_remaining_lines_again_for_each_call_of_next_lines() -> None:
    def split(count: int) -> None:
        splitter = LineSplitter()
        splitter.feed(b"\r\n" * count)
        for position in range(2, 2 * count + 1, 2):
            assert splitter.next_lines(1).items() == [""]
            assert splitter.position == position

    assert growth(split, 2_000) < LINEAR_GROWTH_MAX


def test_line_splitter_does_not_copy_a_long_line_again_for_each_block_that_it_receives() -> None:
    def split(count: int) -> None:
        splitter, block = LineSplitter(), b"x" * 16_384
        for _ in range(count):
            splitter.feed(block)
        splitter.feed(b"\r\n")
        assert len(splitter.next_lines(1).items()[0]) == count * 16_384

    assert growth(split, 64) < LINEAR_GROWTH_MAX
