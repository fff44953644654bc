"""Numbers of bytes as people write them."""

import pytest

from tfdist.config.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("512MB", 512 * 10**6), ("1.5 GiB", 3 * 2**29), ("16g", 2**34), ("3b", 3)],
)
def test_reads(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "MB", "-1GB", "2 apples", "1e9", "1GB2"])
def test_refuses(text):
    with pytest.raises(ValueError, match="no number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123456, "123 kB"), (16.2e9, "16.2 GB")],
)
def test_writes(number, text):
    assert format_bytes(number) == text
    assert format_bytes(2e12) == "2 TB"
