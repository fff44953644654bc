"""Data sets of TensorFlow Datasets: names, splits, and images that are decoded late."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import tiny_images  # noqa: F401  registers the data set
import tiny_rows  # noqa: F401
from sharing import job, order, run

from tfdist import data
from tfdist.data import tfds_source
from tfdist.data.digits import digits_dataset_builder as digits
from tfdist.errors import DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("tfds"))


def make(name, folder, **arguments):
    return data.make_dataset(name, **{"global_batch_size": 8, "data_dir": folder, **arguments})


def test_the_digits_are_divided_in_proportion():
    images, labels = digits.read_rows()
    assert images.shape == (1797, 8, 8, 1)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0.0, 1.0)
    splits = digits.split_rows(labels)
    assert [len(splits[name]) for name in ("train", "test")] == [1437, 360]
    assert len(np.union1d(*splits.values())) == 1797
    for name in splits:
        shares = np.bincount(labels[splits[name]]) / np.bincount(labels)
        assert np.ptp(shares) < 0.02


def test_the_digits_are_read_as_they_were_shipped(folder):
    images, labels = digits.read_rows()
    rows = digits.split_rows(labels)["test"]
    part = make("digits", folder, split="test", global_batch_size=500)
    ((read_images, read_labels),) = list(part)
    assert read_labels.dtype == tf.int64
    np.testing.assert_array_equal(read_images, images[rows])
    np.testing.assert_array_equal(read_labels, labels[rows])


def test_the_digits_are_the_default(folder):
    part = data.make_dataset(global_batch_size=8, data_dir=folder)
    assert data.info_of(part).name == "digits/1.0.0[train]"
    assert data.steps_per_epoch(part) == 180


@pytest.mark.parametrize(
    ("split", "rows"), [("train[:80%]", 1150), ("test[10:20]", 10), ("train+test", 1797)]
)
def test_slices(folder, split, rows):
    assert data.info_of(make("digits", folder, split=split)).rows == rows


def test_workers_together_read_what_one_process_reads(folder):
    for cache in (True, False):  # rows in memory, and a stream
        arguments = {"global_batch_size": 100, "seed": 3, "data_dir": folder, "cache": cache}
        assert job("digits", 2, **arguments) == job("digits", 1, **arguments)


@pytest.mark.parametrize("cache", [True, False])
def test_images_and_their_decoding(folder, cache):
    decoded = []
    part = make(
        "tiny_images", folder, cache=cache, num_workers=2, rank=1, shuffle=False, split="train"
    )
    assert [spec.dtype for spec in part.element_spec] == [tf.uint8, tf.int64]
    for images, labels in part:
        decoded.extend(images[:, 0, 0, 0].numpy().tolist())
        assert images.shape[1:] == (4, 4, 3)
        assert (images[:, 0, 0, 0].numpy() % 5 == labels.numpy()).all()
    assert decoded == [4, 5, 6, 7, 12, 13, 14, 15]


def test_a_stream_decodes_the_workers_own_rows_only(folder, monkeypatch):
    calls = []
    original = tfds_source._decode

    def counting(*arguments):
        decode = original(*arguments)

        def count(*element):
            tf.py_function(lambda: calls.append(1), [], [])
            return decode(*element)

        return count

    monkeypatch.setattr(tfds_source, "_decode", counting)
    run(make("tiny_images", folder, cache=False, num_workers=4, rank=1))
    assert len(calls) == 2 + 2 + 2


def test_dicts_and_pairs(folder):
    for cache in (True, False):
        (batch, *_) = make("tiny_images", folder, as_supervised=False, shuffle=False, cache=cache)
        assert set(batch) == {"image", "label", "name"}
        assert batch["name"][3] == b"image 3"
        assert batch["image"][3, 0, 0, 0] == 3


def test_the_number_of_classes(folder):
    assert data.num_classes("digits", folder) == 10
    assert data.num_classes("tiny_images", folder) == 5
    with pytest.raises(DataError, match="does not tell its number of classes"):
        data.num_classes("tiny_rows", folder)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("digist", "train", r"no such data set.*Received: 'digist'\. Did you mean 'digits'\?"),
        ("no_such_thing_at_all", "train", r"Datasets\. Received: 'no_such_thing_at_all'\. \d+ are"),
        ("user/digits!", "train", "no such data set"),
        ("digits/large", "train", "can't open 'digits' as asked.*Say 'digits' alone"),
        ("digits:9.9.9", "train", "can't open 'digits' as asked.*9.9.9"),
        ("digits", "validation", r"no such split.*'validation'.*It has 'train', 'test'"),
        ("digits", "train[:x%]", "no such split"),
        ("digits", "train[5:5]", "no (such split|rows)"),
    ],
)
def test_names_and_splits_that_do_not_exist(folder, name, split, message):
    with pytest.raises(DataError, match=message):
        make(name, folder, split=split)


def test_pairs_are_not_invented(folder):
    (rows,) = make("tiny_rows", folder, split="rows")
    assert sorted(rows["number"].numpy()) == [0, 1, 2]
    with pytest.raises(DataError, match=r"does not define pairs.*dicts of 'number'"):
        make("tiny_rows", folder, split="rows", as_supervised=True)


def test_the_folder_comes_from_tfds_own_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert tfds_source.find_builder("digits").data_dir == str(tmp_path / "digits" / "1.0.0")
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert tfds_source.default_data_dir().endswith("/tensorflow_datasets")


@pytest.fixture(scope="module")
def several_files(tmp_path_factory):
    """Twenty images in four files."""
    folder = str(tmp_path_factory.mktemp("files"))
    builder = tfds_source.find_builder("tiny_images", folder)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return folder


@pytest.fixture
def striped(several_files, monkeypatch):
    """Arguments of a data set that is read in four stripes."""
    monkeypatch.setattr(tfds_source, "_ROWS_OF_A_STRIPE", 1)
    return {"global_batch_size": 12, "seed": 4, "data_dir": several_files, "cache": False}


@pytest.mark.parametrize("options", [{}, {"drop_remainder": True}, {"as_supervised": False}])
def test_stripes_give_the_same_batches_to_any_number_of_workers(striped, options):
    (one,) = job("tiny_images", 1, **striped, **options)
    for workers in (2, 4, 3):  # with three every worker reads all stripes, as they don't divide
        (together,) = job("tiny_images", workers, **striped, **options)
        assert together[0] == one[0]
        assert [sorted(map(str, step[-1])) for step in together] == [
            sorted(map(str, step[-1])) for step in one
        ]


def test_stripes_are_shuffled_anew_each_epoch(striped):
    epochs = job("tiny_images", 2, epochs=2, **striped)
    orders = [[image[0][0][0] for image in order(epoch)] for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1]


def test_repeating_stripes(striped):
    once = job("tiny_images", 2, epochs=2, **striped)
    assert job("tiny_images", 2, limit=4, repeat=True, **striped) == [once[0] + once[1]]


def test_a_worker_does_not_read_the_stripes_of_others(striped, monkeypatch):
    read = []
    original = tfds_source._read

    def counting(builder, split, *arguments, **options):
        def count(*element):
            tf.py_function(lambda: read.append(1), [], [])
            return element

        return original(builder, split, *arguments, **options).map(count)

    monkeypatch.setattr(tfds_source, "_read", counting)
    run(data.make_dataset("tiny_images", num_workers=4, rank=3, **striped))
    assert len(read) == 5


def test_stripes_can_be_previewed(striped):
    preview = data.preview_shards("tiny_images", num_workers=2, **striped)
    assert sorted(sum(preview.rows[0] + preview.rows[1], [])) == list(range(20))
    assert max(sum(preview.rows[0], [])) < 10 <= min(sum(preview.rows[1], []))


@pytest.mark.parametrize(
    ("files", "rows", "batch", "stripes"),
    [
        (100, 10**6, 256, 8),
        (100, 10**6, 96, 24),
        (10, 10**6, 256, 8),
        (10, 100, 256, 4),
        (1, 10**6, 256, 1),
        (100, 10, 256, 1),
        (100, 10**6, 7, 1),
    ],
)
def test_the_number_of_stripes(files, rows, batch, stripes):
    info = SimpleNamespace(file_instructions=[None] * files, num_examples=rows)
    assert tfds_source._number_of_stripes(info, batch) == stripes
