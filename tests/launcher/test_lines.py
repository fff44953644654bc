import pytest

from tfdist.launcher import lines
from tfdist.launcher.lines import LineBuffer, fit, plain, settle


def test_a_line_is_given_out_when_its_newline_arrives():
    buffer = LineBuffer()
    assert buffer.feed(b"one\ntw") == [b"one"]
    assert buffer.feed(b"o\n\nthr") == [b"two", b""]
    assert buffer.finish() == [b"thr"]
    assert buffer.finish() == []


def test_a_character_cut_between_chunks_stays_whole():
    data = "é\n".encode()
    buffer = LineBuffer()
    assert buffer.feed(data[:1]) == []
    assert buffer.feed(data[1:]) == ["é".encode()]


def test_bytes_that_are_not_text_pass_unchanged():
    assert LineBuffer().feed(b"\xff\xfe\x00\x1b[1mbold\n") == [b"\xff\xfe\x00\x1b[1mbold"]


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"windows\r", b"windows"),
        (b"\r1/3\r2/3\r3/3", b"3/3"),
        (b"1/3\b\b\b\r2/3\b\b\b\r3/3", b"3/3"),
        (b"1/3\b\b\b\r", b"1/3"),
        (b"working |\b/\b-\b\\", b"working \\"),
        (b"abc\b\b\bxyz!", b"xyz!"),
        (b"\b\bstart", b"start"),
        (b"\x1b[1m1/2\x1b[0m\b\b\b\x1b[1m2/2\x1b[0m", b"\x1b[1m2/2\x1b[0m\x1b[0m"),
        (b"\r\r\b", b""),
    ],
)
def test_a_rewritten_line_is_its_last_state(written, seen):
    if seen.startswith(b"\x1b"):
        assert plain(settle(written)) == plain(seen)
    else:
        assert settle(written) == seen


def test_progress_is_the_state_of_an_unfinished_line():
    buffer = LineBuffer()
    buffer.feed(b"no bar yet")
    assert buffer.progress is None
    assert buffer.feed(b"\n\r1/2") == [b"no bar yet"]
    assert buffer.progress == b"1/2"
    buffer.feed(b"\b\b\b\r")
    assert buffer.progress == b"1/2"
    assert buffer.feed(b"2/2\n") == [b"2/2"]
    assert buffer.progress is None


def test_a_long_bar_takes_no_memory():
    buffer = LineBuffer()
    for step in range(20_000):
        buffer.feed(b"\b" * 40 + b"\r" + b"%5d [====          ]" % step)
    assert len(buffer._pending) < 200
    assert buffer.finish() == [b"19999 [====          ]"]


def test_endless_data_is_given_out_in_pieces():
    buffer = LineBuffer()
    pieces = []
    for _ in range(40):
        pieces += buffer.feed(b"x" * (lines.LONGEST // 8))
    assert sum(map(len, pieces)) + len(buffer._pending) == 5 * lines.LONGEST
    assert len(buffer._pending) <= lines.LONGEST


def test_colours_are_kept_for_terminals_only():
    bar = b"\r\x1b[32m1/1\x1b[0m\n"
    assert LineBuffer(keep_colours=True).feed(bar) == [b"\x1b[32m1/1\x1b[0m"]
    assert LineBuffer(keep_colours=False).feed(bar) == [b"1/1"]


def test_fit_counts_visible_characters_only():
    assert fit("\x1b[32mabcdef\x1b[0m", 3) == "\x1b[32mabc\x1b[0m"
    assert fit("abc", 3) == "abc"
