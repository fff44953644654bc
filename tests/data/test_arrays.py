"""Arrays: their structure and types, and large ones that are never copied whole."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from sharing import columns, job

from tfdist import data
from tfdist.data import arrays, pipeline, plans
from tfdist.data.arrays import from_arrays


def first(source, **arguments):
    return next(iter(data.make_dataset(source, global_batch_size=4, shuffle=False, **arguments)))


def test_the_structure_is_kept():
    source = ({"b": np.arange(4), "a": (np.arange(4), np.arange(4.0))}, np.arange(4))
    features, label = first(source)
    assert set(features) == {"a", "b"}
    assert isinstance(features["a"], tuple)
    assert label.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros(4), "float32"),  # as fit does with arrays
        (np.zeros(4, "float16"), "float32"),
        (np.zeros(4, "uint8"), "uint8"),
        (np.zeros(4, bool), "bool"),
        (np.array(["a", "b", "c", "d"]), "string"),
        (np.array([b"a", b"b", b"c", "d"], dtype=object), "string"),
        (tf.zeros(4, tf.float64), "float64"),
        (tf.Variable(tf.zeros(4)), "float32"),
    ],
)
@pytest.mark.parametrize("limit", [arrays.TENSOR_LIMIT, 0])
def test_types(array, dtype, limit):
    rows = from_arrays((array,), tensor_limit=limit)
    assert rows.gather(tf.constant([0, 2], tf.int64))[0].dtype.name == dtype


def test_floats_follow_keras():
    keras.config.set_floatx("float64")
    try:
        assert first(np.zeros(4, "float32")).dtype == tf.float64
    finally:
        keras.config.set_floatx("float32")


def test_ragged_tensors_are_arrays_too():
    ragged = tf.ragged.constant([[1], [2, 3], [], [4], [5, 6, 7]])
    assert job(ragged, 2, global_batch_size=4, shuffle=False) == [
        [[[[1], [2, 3], [], [4]]], [[[5, 6, 7]]]]
    ]


def test_what_numpy_can_convert_is_an_array():
    class Frame:
        def __array__(self, dtype=None, copy=None):
            return np.arange(4)

    assert first(Frame()).numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("map_fn", [None, lambda x, y: (x, y)])
def test_arrays_that_are_not_copied_give_the_same_rows(monkeypatch, map_fn, tmp_path):
    disk = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", shape=(29, 3), dtype="float64")
    disk[:] = np.arange(87).reshape(29, 3)
    source = (disk, np.arange(29))
    arguments = {"global_batch_size": 8, "seed": 2, "epochs": 2, "map_fn": map_fn}
    copied = job(source, 2, **arguments)
    monkeypatch.setattr(arrays, "TENSOR_LIMIT", 0)
    monkeypatch.setattr(arrays.from_arrays, "__kwdefaults__", {"tensor_limit": 0, "name": "arrays"})
    assert job(source, 2, **arguments) == copied
    part = data.make_dataset(source, global_batch_size=8, num_workers=2)
    assert [spec.shape.as_list() for spec in part.element_spec] == [[None, 3], [None]]


def test_contents_are_told_apart():
    def mark(*items):
        return from_arrays(items).fingerprint

    x = np.arange(10.0)
    assert mark(x) == mark(x.copy())
    different = [mark(x), mark(x[::-1]), mark(x[:9]), mark(x.astype("f")), mark(x, x)]
    assert len(set(different)) == len(different)
    texts = np.array(["a", "b"], dtype=object)
    assert mark(texts) == mark(np.array(["a", "b"], dtype=object)) != mark(texts[::-1])
    assert mark(tf.ragged.constant([[1], []])) != mark(tf.ragged.constant([[2], []]))


LARGE = """
import resource, sys
import numpy as np
import tensorflow as tf
from tfdist import data

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

x = np.memmap(sys.argv[1], "float32", "r", shape=(580, 2**20))
small = data.make_dataset(np.zeros((8, 2**10), "f"), global_batch_size=4)
for batch in small: pass
before = peak()
dataset = data.make_dataset((x, np.arange(580)), global_batch_size=8, num_workers=2, seed=1)
seen = []
for images, labels in dataset.take(12):
    seen.extend(labels.numpy().tolist())
    assert images.shape == (4, 2**20)
    assert images[0, 0].numpy() == labels[0].numpy() + 1 if labels[0] < 9 else True
print(len(set(seen)), x.nbytes, peak() - before)
"""


def test_more_than_two_gigabytes_are_streamed(tmp_path):
    path = tmp_path / "large.bin"
    row = 2**20 * 4
    with open(path, "wb") as file:  # a sparse file: its pages of zeros take no disk space
        file.truncate(580 * row)
        for number in range(9):
            file.seek(number * row)
            file.write(np.float32(number + 1).tobytes())
    script = tmp_path / "large.py"
    script.write_text(LARGE)
    result = subprocess.run(
        [sys.executable, script, path],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    seen, size, grown = map(int, result.stdout.split())
    assert seen == 48
    assert size > 2**31
    assert grown < 0.5 * size  # beside the data itself


def test_nothing_large_becomes_part_of_a_graph(monkeypatch):
    rows = from_arrays(np.zeros((1000, 1000), "f"))
    plan = plans.Plan(
        share=data.Share(10),
        seed=1,
        drop_remainder=False,
        repeat=False,
        steps=100,
        refill=False,
        start_epoch=0,
        map_fn=None,
        options=data.making.Data(),
    )
    dataset = pipeline.build(rows, plan)
    assert len(columns(next(iter(dataset)))[0]) == 10
    traced = tf.function(lambda: rows.gather(tf.range(4, dtype=tf.int64))).get_concrete_function()
    assert traced.graph.as_graph_def().ByteSize() < 100_000
