"""The synthetic clicks: the same every time, after Zipf's law, with something to learn."""

import keras
import numpy as np
import pytest

from tfdist import data
from tfdist.data.clicks import NUMERIC, ROWS, VOCABULARIES
from tfdist.errors import DataError


def auc(labels, scores):
    metric = keras.metrics.AUC(num_thresholds=2000)
    metric.update_state(labels, scores)
    return float(metric.result())


def test_the_same_arguments_give_the_same_rows():
    first, again = (data.synthetic_clicks("test", 500, seed=3) for _ in range(2))
    for name, values in first.features.items():
        assert np.array_equal(values, again.features[name])
    assert np.array_equal(first.labels, again.labels)
    other = data.synthetic_clicks("test", 500, seed=4)
    assert not np.array_equal(first.features["user"], other.features["user"])


def test_shapes_and_ranges():
    clicks = data.synthetic_clicks("test")
    assert clicks.features.keys() == {*VOCABULARIES, "numeric"}
    assert clicks.labels.shape == (ROWS["test"], 1)
    assert clicks.features["numeric"].shape == (ROWS["test"], NUMERIC)
    for name, size in VOCABULARIES.items():
        ids = clicks.features[name]
        assert ids.dtype == np.int32
        assert ids.min() >= 0
        assert ids.max() < size
    assert 0.25 < clicks.labels.mean() < 0.4


def test_ids_follow_zipfs_law_and_the_frequent_ones_are_scattered():
    ids = data.synthetic_clicks("train").features["item"][:, 0]
    counts = np.bincount(ids, minlength=VOCABULARIES["item"])
    ranked = np.sort(counts)[::-1]
    assert ranked[0] / ranked[9] == pytest.approx(10, rel=0.15)
    assert ranked[0] / ranked[99] == pytest.approx(100, rel=0.3)
    half = counts[: len(counts) // 2].sum() / counts.sum()
    assert 0.3 < half < 0.7, "a shard of contiguous rows must not hold all frequent ids"


def test_the_truth_is_in_both_splits_and_can_be_ranked_by():
    train, test = (data.synthetic_clicks(split) for split in ("train", "test"))
    assert auc(test.labels, test.probabilities) == pytest.approx(0.862, abs=0.003)
    rates = []
    for clicks in (train, test):  # a frequent item's click rate tells of the other split
        ids = clicks.features["item"][:, 0]
        frequent = np.argsort(np.bincount(train.features["item"][:, 0]))[-20:]
        rates.append([clicks.labels[ids == item].mean() for item in frequent])
    assert np.corrcoef(*rates)[0, 1] > 0.8


def test_it_is_a_data_set_by_name():
    made = data.make_dataset("synthetic_clicks", split="test", global_batch_size=64)
    features, labels = next(iter(made))
    drawn = data.synthetic_clicks("test")
    assert np.array_equal(labels, drawn.labels[:64])
    assert np.array_equal(features["shop"], drawn.features["shop"][:64])
    assert data.info_of(made).rows == ROWS["test"]
    rows = data.make_dataset(
        "Synthetic_Clicks", split="test", global_batch_size=64, as_supervised=False
    )
    assert next(iter(rows)).keys() == {*VOCABULARIES, "numeric", "label"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "train[:10]"}, "can't be sliced"),
        ({"rows": 0}, "`rows` must be a positive integer"),
        ({"vocabularies": {"user": 3}}, "'user' and 'item' are among them"),
        ({"vocabularies": {"user": 3, "item": 0}}, "one id at least"),
        ({"exponent": -1.0}, "not negative"),
    ],
)
def test_wrong_arguments_are_told(arguments, message):
    with pytest.raises(DataError, match=message):
        data.synthetic_clicks(**arguments)
