"""An embedding whose table is divided over the parameter servers.

    table    rows 0 .. 9            input_dim 10, shards 3
             0 1 2 3 | 4 5 6 | 7 8 9
    shard    0       | 1     | 2    each a variable of its own; the first ones take what is over
    on       ps 0    | ps 1  | ps 2

    ids 7 0 8 4  ->  by shard: [0] [4] [7 8]  ->  rows gathered where they are  ->  the ids' order

Only the rows of a batch's ids travel, and their gradients travel back as slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import initial_rows
from tfdist.errors import ConfigError, explain
from tfdist.keras_bridge import sharded_state

__all__ = ["ShardedEmbedding"]

_OVER_ROWS = (0, -2)  # an axis that runs over all rows of the table


@keras.saving.register_keras_serializable("tfdist")
class ShardedEmbedding(keras.layers.Layer):
    """`keras.layers.Embedding` whose table may be larger than the memory of one parameter server.

    Each shard is a variable that holds a contiguous block of rows. Initial values, outputs, masks
    and updates are those of `keras.layers.Embedding`; a saved file holds one table, and one of each
    optimizer slot, so that it can be loaded with any number of shards.

    Some things are computed from each variable by itself, so that they do depend on the shards:
    `clipnorm`, the optimizers that scale by a variable's norm or keep factors of it (Lamb, Muon,
    Adafactor), and regularizers that are no sum over rows. `global_clipnorm` is not one of them.
    The state of Adafactor is saved by shard, too.

    The initializers that draw uniform or normal numbers or constants draw each shard where it is
    kept; for any other, such as `Orthogonal`, the whole table is drawn once on the host and cut.
    """

    built: bool  # Keras's own; declared for type checkers

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        shards: int | None = None,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        """Creates the layer.

        Args:
            input_dim: rows of the table: the largest id + 1.
            output_dim: columns of the table: the length of an embedding.
            shards: number of variables that hold the table. None means one for each parameter
                server of the strategy in whose scope the layer is built, and one elsewhere.
            embeddings_initializer: of the table.
            embeddings_regularizer: a sum over rows, such as L1 and L2.
            embeddings_constraint: of each row by itself, such as `MaxNorm(axis=1)`.
            mask_zero: whether id 0 is padding, which later layers are told to pass over.
            **kwargs: `name`, `dtype`, `trainable`: as any Keras layer takes.

        Raises:
            ConfigError: if a size isn't a positive integer, if there are more shards than rows, or
                if a constraint or regularizer needs all rows at once.
        """
        super().__init__(**kwargs)
        self.input_dim = _positive("input_dim", input_dim)
        self.output_dim = _positive("output_dim", output_dim)
        self.shards = None if shards is None else _positive("shards", shards)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False  # the rows are cast, not the table
        self._table: list[Any] = []
        if self.shards is not None and self.shards > input_dim:
            raise ConfigError(
                explain(
                    "An embedding can't have more shards than rows",
                    received=f"shards={shards}, input_dim={input_dim}",
                    fix="Use fewer shards, or none: the default is one for each parameter server",
                )
            )
        if (self.shards or 1) > 1:
            self._check_works_by_rows()

    def build(self, input_shape: Any = None) -> None:
        """Creates the shards, in the strategy's scope.

        Args:
            input_shape: not needed.

        Raises:
            ConfigError: if there are several parameter servers, and a constraint or regularizer
                needs all rows at once.
        """
        if self.built:
            return
        shards = self.shards or min(_parameter_servers(), self.input_dim)
        if shards > 1:
            self._check_works_by_rows()
        self._starts = _first_rows(self.input_dim, shards)
        initializers = self._shard_initializers()
        # Set once and whole: Keras follows what is in the list.
        self._table = [
            self.add_weight(
                shape=(rows, self.output_dim),
                initializer=initializers(first),
                name="embeddings" if shards == 1 else f"embeddings_{shard}",
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                autocast=False,
            )
            for shard, (first, rows) in enumerate(self._blocks())
        ]
        if shards > 1:
            self.supports_jit = False  # XLA can't divide ids into parts of unknown size
            sharded_state.mark(self._table)
        self.built = True

    @property
    def embeddings(self) -> tf.Tensor:
        """The whole table as one tensor, put together here; not for tables that fit nowhere.

        Raises:
            AttributeError: if the layer isn't built.
        """
        if not self.built:
            raise AttributeError("You must build the layer before accessing `embeddings`.")
        return tf.concat([shard.value for shard in self._table], axis=0)

    def call(self, inputs: Any) -> Any:
        """Looks the ids up.

        Args:
            inputs: integers of any shape; a ragged tensor gives a ragged one.

        Returns:
            Embeddings in the compute dtype: the ids' shape, then `output_dim`.
        """
        if isinstance(inputs, tf.RaggedTensor):
            return tf.ragged.map_flat_values(self.call, inputs)
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        ids = tf.convert_to_tensor(inputs)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)
        ids = tf.where(ids < 0, ids + tf.cast(self.input_dim, ids.dtype), ids)
        if len(self._table) == 1:
            rows = tf.gather(self._table[0].value, ids)
        else:
            rows = self._from_shards(ids)
        return tf.cast(rows, self.compute_dtype)

    def _from_shards(self, ids: Any) -> Any:
        flat = tf.reshape(ids, [-1])
        shard = _shard_of(flat, self.input_dim, len(self._table))
        local = flat - tf.gather(tf.constant(self._starts[:-1], ids.dtype), shard)
        places = tf.dynamic_partition(tf.range(tf.size(flat)), shard, len(self._table))
        wanted = tf.dynamic_partition(local, shard, len(self._table))
        found = [_gather(block.value, rows) for block, rows in zip(self._table, wanted)]
        rows = tf.dynamic_stitch(places, found)
        rows = tf.reshape(rows, tf.concat([tf.shape(ids), [self.output_dim]], axis=0))
        rows.set_shape([*ids.shape, self.output_dim])
        return rows

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns where the ids aren't padding; None without `mask_zero`.

        Args:
            inputs: the ids.
            mask: not used.
        """
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the ids' shape, then `output_dim`.

        Args:
            input_shape: of the ids.
        """
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Returns the symbolic output.

        Args:
            inputs: symbolic ids.
        """
        return keras.KerasTensor(
            self.compute_output_shape(inputs.shape),
            dtype=self.compute_dtype,
            ragged=getattr(inputs, "ragged", False),
        )

    def get_weights(self) -> list[np.ndarray]:
        """Returns the table, one array however many shards there are."""
        return [self._whole()] if self.built else []

    def set_weights(self, weights: Any) -> None:
        """Sets the table.

        Args:
            weights: a list of one array, as `keras.layers.Embedding.get_weights` returns it.

        Raises:
            ConfigError: if it isn't one table of this layer's shape.
        """
        weights = list(weights)
        if len(weights) != 1:
            raise ConfigError(
                explain(
                    "The weights of a ShardedEmbedding are one table",
                    received=f"{len(weights)} arrays",
                    fix="Give a list of one array, as get_weights() returns it",
                )
            )
        self._assign(weights[0])

    def save_own_variables(self, store: Any) -> None:
        """Writes the shards as one table, as `keras.layers.Embedding` does.

        Args:
            store: what Keras saves to.
        """
        if self.built:
            store["0"] = self._whole()

    def load_own_variables(self, store: Any) -> None:
        """Reads one table into the shards.

        Args:
            store: what Keras loads from; of this layer, or of a `keras.layers.Embedding`.

        Raises:
            ConfigError: if it isn't one table of this layer's shape.
        """
        if not self.built and store.keys():
            self.build()
        if self.built:
            self.set_weights([store[key] for key in store.keys()])  # noqa: SIM118

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments; `shards=None` stays, to suit wherever it is loaded."""
        return super().get_config() | {
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "shards": self.shards,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
        }

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yields (first row, number of rows) of each shard."""
        for first, end in zip(self._starts, self._starts[1:]):
            yield first, end - first

    def _shard_initializers(self) -> Callable[[int], Any]:
        """Returns a function from a shard's first row to its initializer."""
        initializer = self.embeddings_initializer
        table = (self.input_dim, self.output_dim)
        dtype = self.variable_dtype
        if len(self._starts) == 2:
            return lambda first: initializer
        with tf.init_scope():
            if initial_rows.can_draw_rows(initializer, dtype):
                return lambda first: initial_rows.rows_initializer(initializer, first, table)
            whole = np.asarray(initializer(table, dtype=dtype))
        return lambda first: lambda shape, dtype=None: whole[first : first + shape[0]]

    def _whole(self) -> np.ndarray:
        table: np.ndarray | None = None
        for (first, rows), shard in zip(self._blocks(), self._table):
            block = shard.numpy()
            if table is None:  # filled block by block: twice the table would be in memory otherwise
                table = np.empty((self.input_dim, self.output_dim), block.dtype)
            table[first : first + rows] = block
        assert table is not None
        return table

    def _assign(self, table: Any) -> None:
        expected = (self.input_dim, self.output_dim)
        if tuple(table.shape) != expected:
            raise ConfigError(
                explain(
                    f"The table of layer '{self.name}' has another shape",
                    received=f"{tuple(table.shape)}; expected {expected}",
                    fix="Load what was saved with the same input_dim and output_dim",
                )
            )
        for (first, rows), shard in zip(self._blocks(), self._table):
            shard.assign(table[first : first + rows])

    def _check_works_by_rows(self) -> None:
        axes = getattr(self.embeddings_constraint, "axis", None)
        axes = axes if isinstance(axes, (list, tuple)) else [axes]
        wrong = None
        if any(axis in _OVER_ROWS for axis in axes):
            wrong = f"embeddings_constraint={type(self.embeddings_constraint).__name__} over axis 0"
        elif isinstance(self.embeddings_regularizer, keras.regularizers.OrthogonalRegularizer):
            wrong = "embeddings_regularizer=OrthogonalRegularizer"
        if wrong is not None:
            raise ConfigError(
                explain(
                    "A constraint or regularizer of a sharded table must work on rows by themselves",
                    received=wrong,
                    fix="Use one such as MaxNorm(axis=1) or L2, or shards=1",
                )
            )


def _gather(block: Any, rows: Any) -> Any:
    """Gathers rows of a shard, of which a batch may need none at all.

    TensorFlow crashes where workers put sparse gradients together that are empty on all of them
    (2.21: a segmentation fault of every worker). So replicas look one row up in vain, whose
    gradient is zero.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return tf.gather(block, rows)
    return tf.gather(block, tf.concat([rows, tf.zeros([1], rows.dtype)], axis=0))[:-1]


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ConfigError(
            explain(
                f"`{name}` of a ShardedEmbedding must be a positive integer",
                received=f"{name}={value!r}",
                fix="Leave it out for the default"
                if name == "shards"
                else "Give a size of 1 or more",
            )
        )
    return int(value)


def _parameter_servers() -> int:
    """Returns how many parameter servers the current strategy has; 1 where there are none."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 1
    # Not from `strategy.cluster_resolver`: TensorFlow's own strategy answers None.
    devices = [tf.DeviceSpec.from_string(d.name) for d in tf.config.list_logical_devices("CPU")]
    return max(1, len({device.task for device in devices if device.job == "ps"}))


def _first_rows(rows: int, shards: int) -> list[int]:
    """Returns the first row of each shard, and the number of rows at the end."""
    size, over = divmod(rows, shards)
    return [shard * size + min(shard, over) for shard in range(shards + 1)]


def _shard_of(ids: Any, rows: int, shards: int) -> Any:
    """Returns the number of each id's shard, int32; the nearest shard of an id that is in none.

    So it is the gather that meets an id out of range, and does what it does without shards.
    """
    size, over = divmod(rows, shards)
    number = tf.maximum(ids // (size + 1), (ids - over) // size)
    return tf.cast(tf.clip_by_value(number, 0, shards - 1), tf.int32)
