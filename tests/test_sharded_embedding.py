"""ShardedEmbedding is keras.layers.Embedding, whatever the number of its shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedding_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from support.server import CaseServer

from tfdist import initial_rows
from tfdist.errors import ConfigError
from tfdist.layers import ShardedEmbedding

SHARDS = (1, 2, 3, 7)
INITIALIZERS = (
    "uniform",
    "normal",
    "truncated_normal",
    "glorot_uniform",
    "glorot_normal",
    "he_normal",
    "lecun_uniform",
    "zeros",
    "ones",
    keras.initializers.Constant(0.25),
    keras.initializers.RandomUniform(-1, 1, seed=2**31 + 5),
    keras.initializers.VarianceScaling(2.0, "fan_avg", "untruncated_normal", seed=4),
)


def table(layer: Any) -> np.ndarray:
    layer.build()
    return layer.get_weights()[0]


# -- initial values -------------------------------------------------------------------------------


@pytest.mark.parametrize("initializer", [*INITIALIZERS, "orthogonal"], ids=str)
@pytest.mark.parametrize("shards", [2, 3])
def test_initial_values_are_those_of_embedding(initializer: Any, shards: int) -> None:
    values = []
    for make in (keras.layers.Embedding, lambda *a, **k: ShardedEmbedding(*a, shards=shards, **k)):
        keras.utils.set_random_seed(5)
        values.append(table(make(401, 7, embeddings_initializer=initializer)))
    assert np.array_equal(*values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_initial_values_of_other_dtypes(dtype: str) -> None:
    values = []
    for make in (keras.layers.Embedding, lambda *a, **k: ShardedEmbedding(*a, shards=3, **k)):
        keras.utils.set_random_seed(5)
        values.append(table(make(40, 3, dtype=dtype)))
    assert values[0].dtype == values[1].dtype == dtype
    assert np.array_equal(*values)


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
def test_no_initializer_of_these_draws_the_whole_table(
    initializer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    kind = type(keras.initializers.get(initializer))
    original = kind.__call__

    def spied(self: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        shapes.append(tuple(shape))
        return original(self, shape, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", spied)
    ShardedEmbedding(1000, 8, shards=4, embeddings_initializer=initializer).build()
    assert all(rows <= 250 for rows, _ in shapes)


def test_a_seed_generator_is_drawn_from_once() -> None:
    make = lambda: keras.initializers.RandomUniform(seed=keras.random.SeedGenerator(4))  # noqa: E731
    plain = table(keras.layers.Embedding(40, 3, embeddings_initializer=make()))
    assert np.array_equal(table(ShardedEmbedding(40, 3, 3, embeddings_initializer=make())), plain)


def test_rows_far_down_a_table_count_on_past_32_bits() -> None:
    """Shards of a table of 2^40 rows don't repeat each other."""
    initializer = keras.initializers.RandomUniform(seed=1)
    blocks = [
        np.asarray(initial_rows.rows_initializer(initializer, first, (2**40, 4))((3, 4)))
        for first in (0, 2**32, 2**33, 2**40)
    ]
    assert len({block.tobytes() for block in blocks}) == 4


# -- looking up -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SHARDS)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """An Embedding and a ShardedEmbedding with the same table."""
    layers = (keras.layers.Embedding(23, 4), ShardedEmbedding(23, 4, shards=request.param))
    for layer in layers:
        layer.build()
    layers[1].set_weights(layers[0].get_weights())
    return layers


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(23),
        np.array([[22, 0, 7], [0, 0, 11]], "int64"),
        np.array([3.0, 4.9], "float32"),
        np.array([5, 250], "uint8") % 23,
        np.array([-1, -23]),
        np.zeros((0, 3), "int32"),
        np.array(4),
        tf.ragged.constant([[1, 2], [], [22]]),
        tf.sparse.from_dense([[0, 3], [22, 0]]),
    ],
    ids=lambda ids: f"{type(ids).__name__}{getattr(ids, 'shape', '')}",
)
def test_outputs_are_those_of_embedding(pair: tuple[Any, Any], ids: Any) -> None:
    expected, got = (layer(ids) for layer in pair)
    assert type(expected) is type(got)
    if isinstance(got, tf.RaggedTensor):
        assert got.to_list() == expected.to_list()
    else:
        assert np.array_equal(expected, got)


@pytest.mark.parametrize("ids", [[23], [-24], [0, 2**31 - 1]])
def test_ids_out_of_range_are_an_error_as_in_embedding(pair: tuple[Any, Any], ids: Any) -> None:
    for layer in pair:
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            layer(np.array(ids))


def test_mask_and_shapes_are_those_of_embedding() -> None:
    layers = keras.layers.Embedding(9, 4, mask_zero=True), ShardedEmbedding(9, 4, 2, mask_zero=True)
    ids = np.array([[0, 3], [8, 0]])
    masks = [np.asarray(layer.compute_mask(ids)) for layer in layers]
    assert np.array_equal(*masks)
    assert ShardedEmbedding(9, 4).compute_mask(ids) is None
    for shape in ((None, 5), (2, 3, 4), (None,)):
        assert layers[0].compute_output_shape(shape) == layers[1].compute_output_shape(shape)
    symbolic = [layer(keras.Input((None,), dtype="int32")) for layer in layers]
    assert symbolic[0].shape == symbolic[1].shape
    assert symbolic[1]._keras_mask is not None


def test_rows_are_cast_not_the_table() -> None:
    layer = ShardedEmbedding(9, 4, shards=2, dtype="mixed_bfloat16")
    assert layer(np.array([1, 8])).dtype == tf.bfloat16
    assert {variable.dtype for variable in layer.variables} == {"float32"}


# -- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_gradients_stay_sparse(shards: int) -> None:
    layer = ShardedEmbedding(9, 4, shards=shards)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(np.array([0, 0, 8])))
    gradients = tape.gradient(total, layer.trainable_variables)
    assert len(gradients) == shards
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
    whole = np.concatenate([tf.convert_to_tensor(gradient) for gradient in gradients])
    assert whole.sum(1).tolist() == [8, 0, 0, 0, 0, 0, 0, 0, 4]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adagrad(0.05, global_clipnorm=0.3),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.AdamW(
                0.01, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9
            )
        ),
    ],
    ids=["Adagrad", "LossScaleOptimizer"],
)
def test_training_and_files_are_those_of_embedding(optimizer: Any, tmp_path: Path) -> None:
    """The file of two shards goes on in three and in one."""
    plain = cases.model(cases.plain, optimizer)
    two = cases.model(cases.sharded(2), optimizer)
    losses = cases.train(plain)
    assert cases.train(two) == pytest.approx(losses, rel=1e-5)
    two.save_weights(tmp_path / "two.weights.h5")
    two.save(tmp_path / "two.keras")

    others = [keras.models.load_model(tmp_path / "two.keras")]
    for shards in (3, 1):
        other = cases.model(cases.sharded(shards), optimizer, seed=9)
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "two.weights.h5")
        others.append(other)
    losses = cases.train(plain, epochs=1)
    for network in (two, *others):
        assert cases.train(network, epochs=1) == pytest.approx(losses, rel=1e-5)
        assert np.allclose(network.layers[0].get_weights()[0], plain.layers[0].get_weights()[0])


def test_adafactors_state_is_saved_by_shard(tmp_path: Path) -> None:
    """Its factors are no rows of a table: loading says so, and loads the weights."""
    two = cases.model(cases.sharded(2), lambda: keras.optimizers.Adafactor(0.01))
    cases.train(two)
    two.save_weights(tmp_path / "two.weights.h5")
    three = cases.model(cases.sharded(3), lambda: keras.optimizers.Adafactor(0.01))
    three.optimizer.build(three.trainable_variables)
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        three.load_weights(tmp_path / "two.weights.h5")
    ids = cases.ids()
    assert np.allclose(three.predict(ids, verbose=0), two.predict(ids, verbose=0), atol=1e-6)


def test_a_regularizer_and_constraint_work_by_shard() -> None:
    networks = []
    for layer in (keras.layers.Embedding, lambda *a, **k: ShardedEmbedding(*a, shards=3, **k)):
        make = lambda layer=layer: layer(  # noqa: E731
            cases.ROWS,
            cases.WIDTH,
            embeddings_regularizer="l2",
            embeddings_constraint=keras.constraints.UnitNorm(axis=1),
        )
        networks.append(cases.model(make, "sgd"))
    losses = [cases.train(network) for network in networks]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert np.allclose(*(network.layers[0].get_weights()[0] for network in networks))


@pytest.fixture(scope="module")
def devices() -> Iterator[CaseServer]:
    with CaseServer("embedding_cases:two_devices") as server:
        yield server


def test_two_replicas_equal_one_device(devices: CaseServer) -> None:
    ((together, alone),) = devices.call("embedding_cases:mirrored_and_alone", optimizer="adam")
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert np.allclose(together["table"], alone["table"], rtol=1e-4, atol=1e-5)


# -- the layer as an object -----------------------------------------------------------------------


def test_shards_are_blocks_of_rows_and_the_first_ones_take_what_is_over() -> None:
    layer = ShardedEmbedding(11, 2, shards=4)
    layer.build()
    assert [tuple(variable.shape) for variable in layer.variables] == [(3, 2)] * 3 + [(2, 2)]
    assert [variable.name for variable in layer.variables] == [f"embeddings_{i}" for i in range(4)]
    assert np.array_equal(layer.embeddings, layer.get_weights()[0])


def test_without_parameter_servers_there_is_one_shard() -> None:
    layer = ShardedEmbedding(11, 2)
    layer.build()
    assert [variable.name for variable in layer.variables] == ["embeddings"]


def test_the_config_is_complete() -> None:
    arguments: dict[str, Any] = {
        "input_dim": 9,
        "output_dim": 4,
        "shards": 3,
        "embeddings_initializer": keras.initializers.RandomNormal(stddev=0.2, seed=1),
        "embeddings_regularizer": "l2",
        "embeddings_constraint": "non_neg",
        "mask_zero": True,
        "name": "words",
    }
    layer = ShardedEmbedding(**arguments)
    again = ShardedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert ShardedEmbedding.from_config(ShardedEmbedding(9, 4).get_config()).shards is None


def test_files_of_the_layer_are_those_of_embedding() -> None:
    plain, layer = keras.layers.Embedding(9, 4), ShardedEmbedding(9, 4, shards=2)
    plain.build()
    layer.build()
    store: dict[str, Any] = {}
    plain.save_own_variables(store)
    layer.load_own_variables({key: np.asarray(value) for key, value in store.items()})
    assert np.array_equal(layer.get_weights()[0], plain.get_weights()[0])
    back: dict[str, Any] = {}
    layer.save_own_variables(back)
    assert back.keys() == store.keys()
    plain.load_own_variables(back)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, r"`shards` .* positive integer. Received: shards=0"),
        ({"shards": True}, "`shards` .* positive integer"),
        ({"shards": 2.0}, "`shards` .* positive integer"),
        ({"shards": 10}, r"more shards than rows. Received: shards=10, input_dim=9"),
        ({"input_dim": 0}, "`input_dim` .* positive integer"),
        ({"output_dim": -1}, "`output_dim` .* positive integer"),
        ({"shards": 2, "embeddings_constraint": "unit_norm"}, "UnitNorm over axis 0"),
        (
            {"shards": 2, "embeddings_regularizer": keras.regularizers.OrthogonalRegularizer()},
            "OrthogonalRegularizer",
        ),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ShardedEmbedding(**{"input_dim": 9, "output_dim": 4} | arguments)


def test_a_table_of_another_shape_is_refused() -> None:
    layer = ShardedEmbedding(9, 4, shards=2)
    layer.build()
    with pytest.raises(ConfigError, match=r"\(8, 4\); expected \(9, 4\)"):
        layer.set_weights([np.zeros((8, 4))])
    with pytest.raises(ConfigError, match="2 arrays"):
        layer.set_weights([np.zeros((5, 4)), np.zeros((4, 4))])


def test_the_table_of_a_layer_that_is_not_built() -> None:
    layer = ShardedEmbedding(9, 4)
    assert layer.get_weights() == []
    with pytest.raises(AttributeError, match="build the layer"):
        layer.embeddings  # noqa: B018
