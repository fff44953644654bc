"""The parts of a model, run one after the other, give what the model gives."""

import keras
import numpy as np
import pipeline_models as models
import pytest
import tensorflow as tf
from keras import tree

from tfdist.pipeline import run_stages
from tfdist.pipeline.graph import read_graph
from tfdist.pipeline.stages import make_stages


def batch(model, rows=6):
    """Random inputs in the structure that the model takes."""
    generator = np.random.default_rng(1)

    def values(symbol):
        shape = (rows, *(size or 7 for size in symbol.shape[1:]))
        if "int" in symbol.dtype:
            return tf.constant(generator.integers(0, 9, shape), symbol.dtype)
        return tf.constant(generator.normal(size=shape), symbol.dtype)

    sequential = isinstance(model, keras.Sequential)
    return tree.map_structure(values, model.inputs[0] if sequential else model.input)


def cuts_of(graph, parts):
    """Even cuts where shared weights with moving averages allow them."""
    possible = [
        cut
        for cut in range(1, len(graph))
        if not any(group.between(cut) and not group.can_be_tied for group in graph.shared)
    ]
    chosen = np.linspace(0, len(possible) - 1, parts + 1)[1:-1].round().astype(int)
    return tuple(possible[index] for index in chosen)


def assert_same(found, expected):
    tree.assert_same_structure(found, expected)
    for one, other in zip(tree.flatten(found), tree.flatten(expected)):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(params=sorted(models.BUILDERS))
def model(request):
    keras.utils.set_random_seed(2)
    built = models.BUILDERS[request.param]()
    generator = np.random.default_rng(3)
    for weight in built.non_trainable_weights:  # moving averages that matter
        weight.assign(weight + generator.uniform(0.1, 0.5, weight.shape))
    return built


def test_the_parts_give_the_models_own_output(model):
    graph = read_graph(model)
    inputs = batch(model)
    for parts in (1, 2, 3):
        stages = make_stages(graph, cuts_of(graph, parts))
        assert len(stages) == parts
        for training in (None, False):
            expected = model(inputs) if training is None else model(inputs, training=training)
            assert_same(run_stages(stages, inputs, training), expected)


def test_every_possible_cut_gives_the_models_own_output():
    for build in (models.residual, models.several, models.masked):
        model = build()
        graph, inputs = read_graph(model), batch(model)
        expected = model(inputs, training=False)
        for cut in range(1, len(graph)):
            assert_same(run_stages(make_stages(graph, (cut,)), inputs, False), expected)


def test_training_changes_the_same_state():
    """Dropout's seed moves on, moving averages follow: twice the same as the model itself."""
    results = []
    for split in (False, True):
        keras.utils.set_random_seed(4)
        model = models.cnn()
        inputs, graph = batch(model), read_graph(model)
        stages = make_stages(graph, cuts_of(graph, 3))
        outputs = [
            run_stages(stages, inputs, True) if split else model(inputs, training=True)
            for _ in range(2)
        ]
        results.append((outputs, [v.numpy() for v in model.variables if "seed" not in v.path]))
    assert_same(results[1], results[0])


def test_gradients_through_the_parts_are_the_models(model):
    inputs, graph = batch(model), read_graph(model)
    stages = make_stages(graph, cuts_of(graph, 2))
    gradients = []
    for call in (lambda: model(inputs, training=False), lambda: run_stages(stages, inputs, False)):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(y * y) for y in tree.flatten(call())])
        gradients.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
    for one, other in zip(*gradients):
        np.testing.assert_allclose(
            tf.convert_to_tensor(one), tf.convert_to_tensor(other), rtol=1e-6
        )


def test_the_parts_work_in_a_function():
    model = models.masked()
    stages = make_stages(read_graph(model), (2, 4))
    inputs = batch(model)
    np.testing.assert_allclose(
        tf.function(lambda x: run_stages(stages, x, False))(inputs), model(inputs), rtol=1e-5
    )


def test_reading_leaves_no_trace_in_the_model(tmp_path):
    """`layer.output` fails for a layer that has been called twice."""
    model = models.residual()
    graph = read_graph(model)
    run_stages(make_stages(graph, (3,)), batch(model), True)
    assert model.get_layer("inner1").output.shape == (None, 8)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(loaded(batch(model)), model(batch(model)))


def test_mixed_precision_is_the_models():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        model = models.nested()
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    graph = read_graph(model)
    # The nested models' inputs are float32, what they are given is not: that is converted.
    assert any(operation.kind == "Enter" for operation in graph.operations)
    for cut in range(1, len(graph)):
        stages = make_stages(graph, (cut,))
        assert_same(
            tf.cast(run_stages(stages, batch(model), False), "float32"),
            tf.cast(model(batch(model), training=False), "float32"),
        )


def test_ports_say_what_crosses():
    graph = read_graph(models.masked())
    first, second = make_stages(graph, (1,))
    assert [port.is_mask for port in first.outputs] == [False, True]
    assert first.inputs == ((graph.inputs[0], False),)
    # The mask is computed from the tokens once more, for the layer that takes it as an argument.
    assert second.inputs == (*first.inputs, *first.outputs)


def test_variables_lie_where_their_layer_does():
    model = models.residual()
    stages = make_stages(read_graph(model), (3, 8))
    found = [variable.path for stage in stages for variable in stage.trainable_variables]
    assert sorted(found) == sorted(v.path for v in model.trainable_variables)
    assert [v.path for v in stages[0].weights] == [
        f"{name}/{kind}" for name in ("first", "inner0", "outer0") for kind in ("kernel", "bias")
    ]
    assert "first to outer0" in repr(stages[0])
    assert stages[0].non_trainable_variables == []
    assert [layer.name for layer in stages[0].layers] == ["first", "inner0", "outer0"]
