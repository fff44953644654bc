"""Text as rows of bytes."""

import numpy as np
import pytest

from tfdist import data
from tfdist.errors import DataError


def test_rows_overlap_by_the_byte_to_predict(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(64)))
    (tmp_path / "b.txt").write_bytes(b"\xff" * 10)
    rows = data.text_rows([tmp_path / "a.txt", tmp_path / "b.txt"], length=5, split="all")
    assert rows.shape == (14, 6)
    assert rows.dtype == np.uint8
    assert rows[1].tolist() == [5, 6, 7, 8, 9, 10]
    assert rows[13].tolist() == [255] * 6
    assert rows[12].tolist() == [60, 61, 62, 63, 10, 255]
    seen, following = data.next_byte(rows[1])
    assert seen.numpy().tolist() == [5, 6, 7, 8, 9]
    assert following.numpy().tolist() == [6, 7, 8, 9, 10]


def test_every_tenth_row_is_held_out(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(256)))
    train, test, everything = (
        data.text_rows(path, length=2, split=s) for s in ("train", "test", "all")
    )
    assert (len(train), len(test), len(everything)) == (115, 12, 127)
    assert test[0].tolist() == [18, 19, 20]
    together = np.concatenate([train, test])
    np.testing.assert_array_equal(together[together[:, 0].argsort()], everything)


def test_the_default_is_english():
    rows = data.text_rows(length=64)
    assert len(rows) > 4000
    text = rows[:, :-1].tobytes().decode(errors="replace")
    assert text.count(" the ") > 2000


def test_a_data_set_of_text(tmp_path):
    (tmp_path / "text").write_bytes(b"abcdefgh" * 40)
    rows = data.text_rows(str(tmp_path / "text"), length=8, split="test")
    batches = data.make_dataset(rows, split="test", global_batch_size=2, map_fn=data.next_byte)
    (seen, following), _ = batches
    assert seen.shape == following.shape == (2, 8)
    assert bytes(seen[0].numpy().astype("uint8")) == b"abcdefgh"
    assert bytes(following[0].numpy().astype("uint8")) == b"bcdefgha"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "validation"}, r"train, test and all\. Received: split='validation'"),
        ({"length": 0}, "length=0"),
        ({"length": 100}, r"too little text.*30 bytes, length=100.*at least 1001 bytes"),
        ({"paths": "nowhere.txt"}, r"can't be read\. Received: nowhere.txt: No such file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, options, message):
    (tmp_path / "text").write_bytes(b"abc" * 10)
    with pytest.raises(DataError, match=message):
        data.text_rows(**{"paths": tmp_path / "text", "length": 2, **options})
