"""How a global batch is cut: no strategy is needed, only one that says where the process stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import DataError
from tfdist.keras_bridge import input as step_input
from tfdist.keras_bridge.input import CHECKSUM, DATA, ROWS, row_range


@dataclasses.dataclass
class Place:
    """Stands for a strategy of `workers` with `local` replicas each, in worker `rank`.

    Its distributed dataset is the worker's own, whose elements are the replicas' in turn.
    """

    workers: int = 1
    local: int = 1
    rank: int = 0
    answers: Callable[[str, str], list[str]] | None = None
    uneven: bool | None = None

    @property
    def num_replicas_in_sync(self) -> int:
        return self.workers * self.local

    @property
    def tfdist(self) -> Any:
        return SimpleNamespace(
            num_workers=self.workers, rank=self.rank, deal=self._deal, exchange=self._exchange
        )

    def _deal(self, _: Any, make_dataset: Callable[[Any], Any], uneven: bool) -> Any:
        self.uneven = uneven
        return make_dataset(None)

    def _exchange(self, name: str, text: str) -> list[str]:
        return self.answers(name, text) if self.answers else [text] * self.workers


def elements(place: Place, dataset: tf.data.Dataset, **kwargs: Any) -> list[Any]:
    return list(step_input.build_input(place, dataset, **kwargs).dataset)


def policy(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    options = tf.data.Options()
    kind = getattr(tf.data.experimental.AutoShardPolicy, name)
    options.experimental_distribute.auto_shard_policy = kind
    return dataset.with_options(options)


def dense(value: Any) -> Any:
    """Returns nested tensors as nested lists."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.to_list()
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.to_dense(leaf).numpy().tolist()
        if isinstance(leaf, tf.experimental.Optional):
            return None
        return leaf.numpy().tolist()

    return tf.nest.map_structure(one, value)


@pytest.mark.parametrize(
    ("rows", "total", "ranges"),
    [
        (7, 3, [(0, 3), (3, 5), (5, 7)]),
        (6, 3, [(0, 2), (2, 4), (4, 6)]),
        (8, 3, [(0, 3), (3, 6), (6, 8)]),
        (1, 2, [(0, 1), (1, 1)]),
        (2, 4, [(0, 1), (1, 2), (2, 2), (2, 2)]),
        (0, 2, [(0, 0), (0, 0)]),
        (5, 1, [(0, 5)]),
    ],
)
def test_row_ranges(rows: int, total: int, ranges: list[tuple[int, int]]) -> None:
    assert [row_range(rows, i, total) for i in range(total)] == ranges
    for dtype in (tf.int32, tf.int64):
        tensors = [row_range(tf.constant(rows, dtype), i, total) for i in range(total)]
        assert [(int(a), int(b)) for a, b in tensors] == ranges
        assert {t.dtype for pair in tensors for t in pair} == {dtype}


def test_row_ranges_are_whole_ordered_and_fair() -> None:
    for rows in range(40):
        for total in range(1, 9):
            ranges = [row_range(rows, i, total) for i in range(total)]
            assert [row for a, b in ranges for row in range(a, b)] == list(range(rows))
            sizes = [b - a for a, b in ranges]
            assert max(sizes) - min(sizes) <= 1
            assert sizes == sorted(sizes, reverse=True), "the first replicas get one more"


def test_even_static_batches_keep_static_shapes() -> None:
    dataset = tf.data.Dataset.range(12).batch(6, drop_remainder=True)
    made = step_input.build_input(Place(local=3), dataset)
    assert made.num_batches == 2
    assert made.dataset.element_spec == {DATA: tf.TensorSpec((2,), tf.int64)}
    assert dense(list(made.dataset)) == [
        {DATA: [0, 1]}, {DATA: [2, 3]}, {DATA: [4, 5]},
        {DATA: [6, 7]}, {DATA: [8, 9]}, {DATA: [10, 11]},
    ]  # fmt: skip


def test_uneven_static_batches_carry_the_global_rows() -> None:
    dataset = tf.data.Dataset.range(7).batch(7, drop_remainder=True)
    assert dense(elements(Place(local=3), dataset)) == [
        {DATA: [0, 1, 2], ROWS: 7}, {DATA: [3, 4], ROWS: 7}, {DATA: [5, 6], ROWS: 7}
    ]  # fmt: skip


def test_batches_of_unknown_size_carry_the_global_rows() -> None:
    dataset = tf.data.Dataset.range(7).batch(4)
    assert dense(elements(Place(local=2), dataset)) == [
        {DATA: [0, 1], ROWS: 4}, {DATA: [2, 3], ROWS: 4},
        {DATA: [4, 5], ROWS: 3}, {DATA: [6], ROWS: 3},
    ]  # fmt: skip


def test_fewer_rows_than_replicas_leave_replicas_without_rows() -> None:
    dataset = tf.data.Dataset.from_tensors(tf.ones((2, 3)))
    parts = [element[DATA] for element in elements(Place(local=4), dataset)]
    assert [tuple(part.shape) for part in parts] == [(1, 3), (1, 3), (0, 3), (0, 3)]


def test_a_batch_of_no_rows_gives_every_replica_none() -> None:
    dataset = tf.data.Dataset.from_tensors(tf.ones((3, 2))).map(lambda x: x[x[:, 0] < 0])
    for element in elements(Place(local=2), dataset):
        assert tuple(element[DATA].shape) == (0, 2)
        assert int(element[ROWS]) == 0


def test_one_replica_gets_the_dataset_as_it_is() -> None:
    dataset = tf.data.Dataset.range(7).batch(4)
    assert dense(elements(Place(), dataset)) == [{DATA: [0, 1, 2, 3]}, {DATA: [4, 5, 6]}]


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_take_their_rows_of_the_same_batches(rank: int) -> None:
    dataset = tf.data.Dataset.range(7).batch(7)
    found = elements(Place(workers=2, local=2, rank=rank), dataset)
    assert [dense(e[DATA]) for e in found] == [[[0, 1], [2, 3]], [[4, 5], [6]]][rank]
    assert all(int(e[ROWS]) == 7 for e in found)


def test_workers_agree_on_the_checksum_of_the_same_batch_alone() -> None:
    dataset = tf.data.Dataset.range(8).batch(8)
    sums = {int(e[CHECKSUM]) for r in (0, 1) for e in elements(Place(workers=2, rank=r), dataset)}
    other = elements(Place(workers=2), dataset.map(lambda x: x + 1))
    assert len(sums) == 1
    assert int(other[0][CHECKSUM]) not in sums


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "dict": (
        {"a": tf.constant([1, 2, 3]), "b": tf.constant([[1.0], [2.0], [3.0]])},
        {"a": [1, 2], "b": [[1.0], [2.0]]},
        {"a": [3], "b": [[3.0]]},
    ),
    "tuple of one": ((tf.constant([1, 2, 3]),), ([1, 2],), ([3],)),
    "strings": (tf.constant(["x", "", "zz"]), [b"x", b""], [b"zz"]),
    "ragged": (tf.ragged.constant([[1], [], [2, 3]]), [[1], []], [[2, 3]]),
    "sparse": (
        tf.sparse.from_dense([[1, 0], [0, 2], [3, 3]]),
        [[1, 0], [0, 2]],
        [[3, 3]],
    ),
    "bool": (tf.constant([True, False, True]), [True, False], [True]),
    "bfloat16": (tf.constant([1, 2, 3], tf.bfloat16), [1, 2], [3]),
    "mixed": (
        (tf.constant([1, 2, 3]), {"r": tf.ragged.constant([[1], [2], []])}),
        ([1, 2], {"r": [[1], [2]]}),
        ([3], {"r": [[]]}),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_kind_of_tensor_is_cut(kind: str, workers: int) -> None:
    value, *parts = KINDS[kind]
    dataset = tf.data.Dataset.from_tensors(value)
    found = []
    for rank in range(workers):
        found += elements(Place(workers=workers, local=2 // workers, rank=rank), dataset)
    assert [dense(e[DATA]) for e in found] == parts
    assert all(int(e[ROWS]) == 3 for e in found)


def test_absent_leaves_pass_through() -> None:
    none = tf.experimental.Optional.empty(tf.TensorSpec((None, 1)))
    dataset = tf.data.Dataset.from_tensors((tf.constant([1, 2, 3]), none))
    found = elements(Place(local=2), dataset)
    assert [dense(e[DATA]) for e in found] == [([1, 2], None), ([3], None)]
    assert step_input.without_optionals(found[0][DATA])[1] is None


def test_data_spec_forgets_the_rows() -> None:
    none = tf.experimental.Optional.empty(tf.TensorSpec((None, 1)))
    value = {"a": tf.ones((4, 3)), "r": tf.ragged.constant([[1], [2], [3], [4]]), "n": none}
    spec = step_input.build_input(Place(local=2), tf.data.Dataset.from_tensors(value)).data_spec
    assert spec["a"] == tf.TensorSpec((None, 3), tf.float32)
    assert spec["r"].shape[0] is None
    assert spec["n"] is None


def test_data_without_a_batch_is_refused() -> None:
    with pytest.raises(DataError, match=r"must yield batches.*\.batch\("):
        step_input.build_input(Place(local=2), tf.data.Dataset.range(4))


@pytest.mark.parametrize(("steps", "known"), [("known", 2), ("infinite", None), ("unknown", None)])
def test_number_of_steps(steps: str, known: int | None) -> None:
    dataset = tf.data.Dataset.range(8).batch(4)
    if steps == "infinite":
        dataset = dataset.repeat()
    if steps == "unknown":
        dataset = dataset.filter(lambda _: True)
    assert step_input.build_input(Place(local=2), dataset).num_batches == known


class TestOwnParts:
    """AutoShardPolicy.OFF: each worker brings its own part of each global batch."""

    def test_even_parts_keep_static_shapes(self) -> None:
        dataset = policy(tf.data.Dataset.range(8).batch(4, drop_remainder=True), "OFF")
        place = Place(workers=2, local=2, rank=1)
        made = step_input.build_input(place, dataset)
        assert made.dataset.element_spec == {DATA: tf.TensorSpec((2,), tf.int64)}
        assert (made.num_batches, place.uneven) == (2, False)
        assert [dense(e[DATA]) for e in made.dataset] == [[0, 1], [2, 3], [4, 5], [6, 7]]

    @pytest.mark.parametrize(
        ("other", "steps", "uneven"),
        [("2,3", 2, False), ("3,4", 3, True), ("-2,4", None, True), ("2,0", 2, False)],
    )
    def test_parts_that_differ_forget_their_rows(
        self, other: str, steps: int | None, uneven: bool
    ) -> None:
        dataset = policy(tf.data.Dataset.range(8).batch(4, drop_remainder=True), "OFF")
        place = Place(workers=2, answers=lambda name, text: [text, other])
        made = step_input.build_input(place, dataset)
        assert made.dataset.element_spec == {DATA: tf.TensorSpec((None,), tf.int64)}
        assert (made.num_batches, place.uneven) == (steps, uneven)

    def test_on_one_worker_the_policy_says_nothing(self) -> None:
        dataset = policy(tf.data.Dataset.range(4).batch(4), "OFF")
        found = elements(Place(local=2), dataset)
        assert [dense(e[DATA]) for e in found] == [[0, 1], [2, 3]]


def test_batches_for_single_replicas_are_dealt_in_turn() -> None:
    dataset = tf.data.Dataset.range(6).batch(2)
    place = Place(local=2)
    made = step_input.build_input(place, dataset, per_replica=True)
    assert (made.num_batches, place.uneven) == (2, True)
    assert [dense(e[DATA]) for e in made.dataset] == [[0, 1], [2, 3], [4, 5]]


class TestChecksum:
    """The same number for the same batch, on any worker; another for another."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_is_repeatable(self, kind: str) -> None:
        value = KINDS[kind][0]
        one, two = (int(step_input._checksum(value)) for _ in range(2))
        assert one == two

    @pytest.mark.parametrize(
        "other",
        [
            [[1.0, 2.0], [3.0, 5.0]],  # another value in the last row
            [[1.5, 2.0], [3.0, 4.0]],  # and in the first
            [[2.0, 1.0], [3.0, 4.0]],  # another order in a row
            [[3.0, 4.0], [1.0, 2.0]],  # another order of rows
            [[1.0, 2.0], [3.0, np.nextafter(np.float32(4.0), np.float32(5.0))]],
            [[-1.0, 2.0], [3.0, 4.0]],
        ],
    )
    def test_tells_batches_apart(self, other: list[list[float]]) -> None:
        batch = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        assert int(step_input._checksum(batch)) != int(step_input._checksum(tf.constant(other)))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "bool"])
    def test_of_every_dtype(self, dtype: str) -> None:
        batch = tf.cast(tf.constant([[0, 1], [1, 1]]), dtype)
        other = tf.cast(tf.constant([[0, 1], [1, 0]]), dtype)
        assert int(step_input._checksum(batch)) != int(step_input._checksum(other))

    def test_of_strings(self) -> None:
        one, two = (int(step_input._checksum(tf.constant([w, "b"]))) for w in ("a", "c"))
        assert one != two

    def test_of_a_batch_without_rows(self) -> None:
        assert int(step_input._checksum(tf.zeros((0, 3)))) == 0


class FromFunction(Place):
    """A `Place` for `distribute_batch`, which makes each replica's part with a function."""

    def experimental_distribute_values_from_function(self, function: Any) -> list[Any]:
        return [
            function(SimpleNamespace(replica_id_in_sync_group=i))
            for i in range(self.num_replicas_in_sync)
        ]


def test_one_batch_is_split_for_the_on_batch_methods() -> None:
    batch = (np.arange(5), None, {"w": np.ones(5)})
    parts = step_input.distribute_batch(FromFunction(local=2), batch)
    assert [part[DATA][1] for part in parts] == [None, None]
    assert [dense(part[DATA][0]) for part in parts] == [[0, 1, 2], [3, 4]]
    assert [int(part[ROWS]) for part in parts] == [5, 5]
    assert step_input.is_element(parts[0])
    assert not step_input.is_element(batch)


def rows_of(*rows: int | None) -> tf.data.Dataset:
    """Returns a dataset of one batch, whose tensors have these rows, as far as they are told."""
    signature = tuple(tf.TensorSpec((None, 1)) for _ in rows)
    batch = tuple(np.zeros((n or 3, 1), "float32") for n in rows)
    dataset = tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=signature)

    def told(*parts: Any) -> tuple[Any, ...]:
        return tuple(tf.ensure_shape(part, (n, 1)) for part, n in zip(parts, rows))

    return dataset.map(told)


def test_tensors_of_unequal_rows_are_refused() -> None:
    with pytest.raises(DataError, match=r"same number of rows.*tf\.repeat"):
        elements(Place(local=2), rows_of(4, 1))
    assert len(elements(Place(), rows_of(4, 1))) == 1, "one device leaves them to the model"
    assert len(elements(Place(local=2), rows_of(4, 4))) == 2


@pytest.mark.parametrize("policies", ["AUTO", "OFF"])
def test_unequal_rows_that_only_the_data_tells_are_refused(policies: str) -> None:
    generated = tf.data.Dataset.from_generator(
        lambda: iter([(np.zeros((4, 1)), np.zeros((2, 1)))]),
        output_signature=(tf.TensorSpec((None, 1)), tf.TensorSpec((None, 1))),
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        elements(Place(workers=2, local=2), policy(generated, policies))


def test_tensors_of_unknown_rank_are_refused() -> None:
    generated = tf.data.Dataset.from_generator(
        lambda: iter([np.zeros((4, 1), "float32")]), output_types=tf.float32
    )
    with pytest.raises(DataError, match=r"shapes.*must be known.*set_shape"):
        elements(Place(local=2), generated)
    assert len(elements(Place(), generated)) == 1


def test_one_batch_of_unequal_rows_is_refused_between_replicas() -> None:
    strategy = SimpleNamespace(
        num_replicas_in_sync=2, experimental_distribute_values_from_function=None
    )
    with pytest.raises(DataError, match=r"same number of rows.*\[1, 4\] rows"):
        step_input.distribute_batch(strategy, (np.zeros((4, 1)), np.zeros((1, 1))))
