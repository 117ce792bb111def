"""Lines out of blocks, however the blocks are cut; positions count bytes."""

from __future__ import annotations

import time

import pytest

from headrace_connectors.file.lines import LineCutter

TEXT = "one\ntwo\r\nthree\rvier äö\n\n€\r\r\nlast".encode()
LINES = ["one", "two", "three", "vier äö", "", "€", ""]


@pytest.mark.parametrize("block_size", range(1, len(TEXT) + 1))
def test_blocks_of_any_size_give_the_same_lines(block_size: int) -> None:
    cutter = LineCutter()
    taken: list[str] = []
    for start in range(0, len(TEXT), block_size):
        cutter.feed(TEXT[start : start + block_size])
        while cutter.has_lines:
            lines = cutter.take(2)
            assert len(lines) == len(lines.items()) <= 2
            taken += lines.items()
    assert taken == LINES
    assert cutter.position == len(TEXT) - len("last")
    assert cutter.held_bytes == len("last")


def test_a_position_resumes_exactly() -> None:
    whole = LineCutter()
    whole.feed(TEXT)
    for taken in range(1, len(LINES)):
        whole.take(1)
        rest = LineCutter(whole.position)
        rest.feed(TEXT[whole.position :])
        assert rest.take(100).items() == LINES[taken:]


def test_text_beyond_ascii_is_counted_in_bytes() -> None:
    cutter = LineCutter()
    cutter.feed("ä\nöö\n".encode())
    assert cutter.take(1).items() == ["ä"]
    assert cutter.position == 3
    assert cutter.take(5).items() == ["öö"]
    assert cutter.position == 8


def test_bytes_that_are_no_utf_8_are_replaced_and_counted() -> None:
    cutter = LineCutter()
    cutter.feed(b"a\xffb\nc\n")
    assert cutter.take(1).items() == ["a\ufffdb"]
    assert cutter.position == 4


def test_a_very_long_line_is_not_copied_again_and_again() -> None:
    cutter, block = LineCutter(), b"x" * 16_384
    started = time.process_time()
    for _ in range(2048):
        cutter.feed(block)
    cutter.feed(b"\r\n")
    assert cutter.take(1).items() == ["x" * (2048 * 16_384)]
    assert time.process_time() - started < 2  # copying each time: 32 GB
