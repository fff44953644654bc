"""From a dataset of global batches to what each replica gets per step.

    rows of a global batch        0 1 2 3 4 5 6        (7 rows, 3 replicas)
    replica 0, 1, 2               0 1 2 | 3 4 | 5 6    the first `7 % 3` replicas get one more

Every replica gets an element in every step, if need be one without rows, so that all workers take
the same number of steps. An element is a dict:

    DATA      what Keras' step gets: x, (x, y) or (x, y, sample_weight)
    ROWS      rows of the global batch, where they are not static
    CHECKSUM  a number that must be the same on all workers, where each cuts the same batches
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import tensorflow as tf

from tfdist.errors import DataError, explain

__all__ = [
    "CHECKSUM",
    "DATA",
    "ROWS",
    "StepInput",
    "build_input",
    "data_spec",
    "distribute_batch",
    "dynamic_rows",
    "is_element",
    "row_count",
    "row_range",
    "slice_rows",
    "with_dynamic_rows",
    "without_optionals",
]

logger = logging.getLogger(__name__)

DATA = "tfdist_data"
ROWS = "tfdist_rows"
CHECKSUM = "tfdist_checksum"

_INFINITE = -1  # tf.data.INFINITE_CARDINALITY
_UNKNOWN = -2


@dataclasses.dataclass(frozen=True)
class StepInput:
    """A distributed dataset, and what is known of it.

    Attributes:
        dataset: yields per-replica elements (see the module).
        num_batches: steps in one pass over it on every worker, or None when unknown.
        data_spec: the structure of DATA, as `tf.TypeSpec`s, with an unknown number of rows.
    """

    dataset: Any
    num_batches: int | None
    data_spec: Any


def row_range(rows: Any, index: int, total: int) -> tuple[Any, Any]:
    """Returns the first row of part `index` of `total`, and the row after its last.

    Args:
        rows: the number of rows, an int or a scalar integer tensor.
        index: which part.
        total: how many parts.
    """
    size, extra = rows // total, rows % total
    if isinstance(rows, int):
        start = index * size + min(index, extra)
        return start, start + size + (1 if index < extra else 0)
    start = index * size + tf.minimum(tf.cast(index, extra.dtype), extra)
    return start, start + size + tf.cast(index < extra, extra.dtype)


def is_element(value: Any) -> bool:
    """Returns whether `value` is an element of a `StepInput`."""
    return isinstance(value, dict) and DATA in value


def without_optionals(data: Any) -> Any:
    """Returns `data` with None for each `tf.experimental.Optional`, as Keras has it."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )


def build_input(strategy: Any, dataset: tf.data.Dataset, per_replica: bool = False) -> StepInput:
    """Distributes a dataset for Keras' loops.

    Args:
        strategy: a tfdist strategy.
        dataset: global batches; or, with `AutoShardPolicy.OFF`, this worker's part of each.
        per_replica: whether the dataset has per-replica batches instead, dealt in turn.

    Returns:
        The input of the steps.

    Raises:
        DataError: if the dataset isn't batched, or can't be sharded as asked.
    """
    _check_batched(strategy, dataset)
    if strategy.num_replicas_in_sync == 1:
        plain = dataset.map(
            lambda *data: {DATA: _packed(data, dataset.element_spec)}, name="tfdist_step_input"
        )
        steps = _cardinality(dataset)
        return StepInput(
            strategy.tfdist.deal(strategy, lambda _: plain, uneven=False),
            steps if steps >= 0 else None,
            data_spec(dataset.element_spec),
        )
    if per_replica:
        return _per_replica(strategy, dataset)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    policies = tf.data.experimental.AutoShardPolicy
    if strategy.tfdist.num_workers > 1 and policy == policies.OFF:
        return _local(strategy, dataset)
    if strategy.tfdist.num_workers > 1 and policy == policies.FILE:
        return _by_files(strategy, dataset)
    return _global(strategy, dataset)


def distribute_batch(strategy: Any, data: Any) -> dict[str, Any]:
    """Splits one global batch over all replicas, for `train_on_batch` and its kin.

    Args:
        strategy: a tfdist strategy.
        data: the batch, nested arrays or tensors; the same on every worker.

    Returns:
        An element with per-replica values.
    """
    tensors = tf.nest.map_structure(
        lambda leaf: tf.experimental.Optional.empty(tf.TensorSpec(())) if leaf is None else leaf,
        data,
    )
    tensors = tf.nest.map_structure(
        lambda leaf: leaf if _is_optional(leaf) else _as_tensor(leaf), tensors
    )
    total = strategy.num_replicas_in_sync
    rows = int(row_count(tensors))
    counts = {int(row_count(leaf)) for leaf in tf.nest.flatten(tensors) if not _is_optional(leaf)}
    if total > 1 and len(counts) > 1:
        raise _unequal_rows(f"{sorted(counts)} rows")

    def part(context: Any) -> dict[str, Any]:
        first, last = row_range(rows, context.replica_id_in_sync_group, total)
        data = without_optionals(tensors if total == 1 else _slice(tensors, first, last))
        return {DATA: data, ROWS: tf.constant(rows, tf.int64)}

    return strategy.experimental_distribute_values_from_function(part)


def _global(strategy: Any, dataset: tf.data.Dataset) -> StepInput:
    """Every worker reads all global batches and takes its replicas' rows of each."""
    workers, total = strategy.tfdist.num_workers, strategy.num_replicas_in_sync
    local = total // workers
    first = strategy.tfdist.rank * local
    static = _static_rows(dataset.element_spec)

    def parts(*data: Any) -> tuple[dict[str, Any], ...]:
        packed = _packed(data, dataset.element_spec)
        rows = static if static is not None else _same_rows(packed)
        extra: dict[str, Any] = {}
        if static is None or static % total:
            extra[ROWS] = tf.cast(rows, tf.int64)
        if workers > 1:
            extra[CHECKSUM] = _checksum(packed)
        return tuple(
            {DATA: _slice(packed, *row_range(rows, first + i, total)), **extra}
            for i in range(local)
        )

    steps = _cardinality(dataset)
    dealt = _dealt(dataset.map(parts, num_parallel_calls=tf.data.AUTOTUNE), local)
    return StepInput(
        strategy.tfdist.deal(strategy, lambda _: dealt, uneven=False),
        steps if steps >= 0 else None,
        data_spec(dataset.element_spec),
    )


def _local(strategy: Any, dataset: tf.data.Dataset) -> StepInput:
    """Every worker brings its own part of each global batch."""
    workers, total = strategy.tfdist.num_workers, strategy.num_replicas_in_sync
    local = total // workers
    static = _static_rows(dataset.element_spec)
    steps = _cardinality(dataset)
    shares = strategy.tfdist.exchange("local dataset", f"{steps},{static or 0}")
    all_steps, all_rows = zip(*(map(int, share.split(",")) for share in shares))
    uneven = min(all_steps) == _UNKNOWN or len(set(all_steps)) > 1
    if uneven and len(set(all_steps)) > 1:
        logger.warning(
            "The workers' own datasets have %s batches; a worker that runs out goes on without "
            "rows until all have.",
            ", ".join("unknown" if n == _UNKNOWN else str(n) for n in all_steps),
        )
    even_rows = not uneven and len(set(all_rows)) == 1 and all_rows[0] > 0
    if not (even_rows and all_rows[0] % local == 0):
        static = None

    def parts(*data: Any) -> tuple[dict[str, Any], ...]:
        packed = _packed(data, dataset.element_spec)
        if static is None:
            packed = with_dynamic_rows(packed)
        rows = static if static is not None else _same_rows(packed)
        return tuple({DATA: _slice(packed, *row_range(rows, i, local))} for i in range(local))

    dealt = _dealt(dataset.map(parts, num_parallel_calls=tf.data.AUTOTUNE), local)
    known = [n for n in all_steps if n >= 0]
    return StepInput(
        strategy.tfdist.deal(strategy, lambda _: dealt, uneven=uneven),
        max(known) if len(known) == workers else None,
        data_spec(dataset.element_spec),
    )


def _per_replica(strategy: Any, dataset: tf.data.Dataset) -> StepInput:
    """The dataset has batches for single replicas; each replica takes the next."""
    local = strategy.num_replicas_in_sync // strategy.tfdist.num_workers
    batches = _cardinality(dataset)
    steps = -(-batches // local) if batches >= 0 else None
    shares = strategy.tfdist.exchange("dataset function", str(steps))
    known = None if "None" in shares else max(map(int, shares))
    spec = dataset.element_spec
    dealt = dataset.map(lambda *data: {DATA: with_dynamic_rows(_packed(data, spec))})
    return StepInput(
        strategy.tfdist.deal(strategy, lambda _: dealt, uneven=True),
        known,
        data_spec(dataset.element_spec),
    )


def _by_files(strategy: Any, dataset: tf.data.Dataset) -> StepInput:
    """Every worker reads its own files, as tf.data's FILE policy does it."""
    problems = strategy.tfdist.exchange(
        "file sharding", strategy.tfdist.file_sharding_problem(dataset)
    )
    if any(problems):
        worker = next(rank for rank, text in enumerate(problems) if text)
        raise DataError(
            explain(
                f"The dataset can't be sharded by files (worker {worker}: {problems[worker]})",
                received="auto_shard_policy=FILE",
                source="the dataset's options",
                fix="Give each worker files of its own, or use AutoShardPolicy.DATA",
            )
        )
    spec = dataset.element_spec
    elements = dataset.map(lambda *data: {DATA: with_dynamic_rows(_packed(data, spec))})
    distributed = strategy.experimental_distribute_dataset(
        strategy.tfdist.without_autotuner(elements)
    )
    return StepInput(distributed, None, data_spec(spec))


def _dealt(dataset: tf.data.Dataset, parts: int) -> tf.data.Dataset:
    """Turns elements of `parts` parts into that many elements in a row."""
    if parts == 1:
        return dataset.map(lambda part: part).prefetch(tf.data.AUTOTUNE)

    def one_by_one(*elements: Any) -> tf.data.Dataset:
        result = tf.data.Dataset.from_tensors(elements[0])
        for element in elements[1:]:
            result = result.concatenate(tf.data.Dataset.from_tensors(element))
        return result

    return dataset.flat_map(one_by_one).prefetch(tf.data.AUTOTUNE)


def _packed(data: tuple[Any, ...], element_spec: Any) -> Any:
    """Returns what a dataset's map function got as one element, which may be a tuple of one."""
    return data if type(element_spec) is tuple else data[0]


def _is_optional(leaf: Any) -> bool:
    return isinstance(leaf, (tf.experimental.Optional, tf.OptionalSpec))


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        return leaf
    return tf.convert_to_tensor(leaf)


def row_count(data: Any) -> Any:
    """Returns the number of rows of a batch: a scalar int64 tensor."""
    leaf = next(leaf for leaf in tf.nest.flatten(data) if not _is_optional(leaf))
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]


def _slice(data: Any, first: Any, last: Any) -> Any:
    def one(leaf: Any) -> Any:
        return leaf if _is_optional(leaf) else slice_rows(leaf, first, last)

    return tf.nest.map_structure(one, data)


def slice_rows(leaf: Any, first: Any, last: Any) -> Any:
    """Returns the rows from `first` to before `last` of a dense, sparse or ragged tensor."""
    if isinstance(leaf, tf.SparseTensor):
        shape = tf.cast(leaf.dense_shape, tf.int64)
        start = tf.concat([[tf.cast(first, tf.int64)], tf.zeros_like(shape[1:])], 0)
        size = tf.concat([[tf.cast(last - first, tf.int64)], shape[1:]], 0)
        return tf.sparse.slice(leaf, start, size)
    return leaf[first:last]


def dynamic_rows(leaf: Any) -> tf.Tensor:
    """Returns the number of rows of a tensor as a scalar int32 tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def _unequal_rows(received: str) -> DataError:
    return DataError(
        explain(
            "All tensors of a batch must have the same number of rows, since each replica gets its "
            "rows of each",
            received=received,
            fix="Repeat what all rows share once for each row (tf.repeat), or make it part of the "
            "model",
        )
    )


def _same_rows(data: Any) -> Any:
    """Returns the number of rows of a batch's tensors, which must be the same for all."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if not _is_optional(leaf)]
    counts = [tf.cast(row_count(leaf), tf.int64) for leaf in leaves]
    checks = [
        tf.debugging.assert_equal(count, counts[0], str(_unequal_rows("unequal numbers of rows")))
        for count in counts[1:]
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(counts[0])


def _checksum(data: Any) -> tf.Tensor:
    """Returns a hash of the batch's first and last rows: int64, the same for the same batch."""
    total = tf.zeros([], tf.int64)
    for leaf in tf.nest.flatten(data):
        if _is_optional(leaf) or isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
            continue
        bits = tf.reshape(_as_integers(tf.concat([leaf[:1], leaf[-1:]], 0)), [-1])
        places = 2 * tf.range(tf.size(bits, out_type=tf.int64)) + 1
        total = 31 * total + tf.reduce_sum(bits * places)  # wraps around, which is fine
    return total


def _as_integers(tensor: tf.Tensor) -> tf.Tensor:
    """Returns int64 values that tell different contents apart."""
    if tensor.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(tensor, 2**31 - 1)
    if tensor.dtype.is_floating:
        sizes = {2: tf.int16, 4: tf.int32, 8: tf.int64}
        return tf.cast(tf.bitcast(tensor, sizes[tensor.dtype.size]), tf.int64)
    return tf.cast(tensor, tf.int64)


def _static_rows(element_spec: Any) -> int | None:
    """Returns the number of rows if all leaves have the same static one."""
    rows = set()
    for spec in tf.nest.flatten(element_spec):
        if _is_optional(spec):
            continue
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
            return None
        rows.add(spec.shape[0] if spec.shape.rank else None)
    return rows.pop() if len(rows) == 1 else None


def with_dynamic_rows(data: Any) -> Any:
    """Forgets the static number of rows, so that an element without rows fits."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
            return leaf
        return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])

    return tf.nest.map_structure(one, data)


def data_spec(element_spec: Any) -> Any:
    def one(spec: Any) -> Any:
        if _is_optional(spec):
            return None
        shape = spec.shape
        if shape.rank:
            shape = tf.TensorShape([None, *shape[1:]])
        return tf.TensorSpec(shape, spec.dtype)

    return tf.nest.map_structure(one, element_spec)


def _cardinality(dataset: tf.data.Dataset) -> int:
    return int(dataset.cardinality().numpy())


def _check_batched(strategy: Any, dataset: tf.data.Dataset) -> None:
    specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if not _is_optional(spec)]
    if strategy.num_replicas_in_sync > 1 and any(spec.shape.rank is None for spec in specs):
        raise DataError(
            explain(
                "The shapes of the dataset's tensors must be known, but for their sizes",
                received=f"elements {dataset.element_spec}",
                fix="Pass output_signature=tf.TensorSpec(...) to Dataset.from_generator, or call "
                "tensor.set_shape in a function that the dataset maps",
            )
        )
    rows = {spec.shape[0] for spec in specs if spec.shape.rank}
    if strategy.num_replicas_in_sync > 1 and len(rows - {None}) > 1:
        raise _unequal_rows(f"elements {dataset.element_spec}")
    for spec in tf.nest.flatten(dataset.element_spec):
        if not _is_optional(spec) and spec.shape.rank == 0 and strategy.num_replicas_in_sync > 1:
            raise DataError(
                explain(
                    "A dataset for `fit` must yield batches: the first dimension of every tensor is "
                    "the batch",
                    received=f"elements {dataset.element_spec}",
                    fix="Call .batch(global_batch_size) on the dataset, or use runtime.dataset(...)",
                )
            )
