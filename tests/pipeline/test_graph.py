"""What is read from a model: its operations in order, what is shared, what crosses a cut."""

import keras
import pipeline_models as models
import pytest
from keras import layers

from tfdist.errors import PartitionError
from tfdist.pipeline.graph import read_graph


@pytest.mark.parametrize("name", sorted(models.BUILDERS))
def test_the_order_can_be_computed(name):
    graph = read_graph(models.BUILDERS[name]())
    known = set(graph.inputs)
    for operation in graph.operations:
        assert known.issuperset(operation.inputs), operation
        known.update(operation.outputs)
    assert known.issuperset(graph.outputs)
    assert len(set(graph.names)) == len(graph)


def test_a_branch_is_walked_to_its_end():
    graph = read_graph(models.several())
    names = [name for name in graph.names if "flatten" not in name and "concat" not in name]
    assert names == ["left", "early", "right", "joined", "trunk", "late", "mixed"]


def test_nested_models_are_entered():
    graph = read_graph(models.nested())
    names = [name.rstrip("_0123456789") for name in graph.names]
    assert names[:3] == ["body/block/dense", "body/block/batch_normalization", "body/tanh"]
    assert "body/wide" in names
    assert [name.partition("#")[2] for name in graph.names[-3:]] == ["2", "2", ""]


def test_shared_weights_are_found_by_the_variable():
    graph = read_graph(models.shared())
    (top, tower) = sorted(graph.shared, key=lambda group: len(group.weights[0].path))
    assert [graph.names[index] for index in tower.operations] == ["tower", "tower#2"]
    assert [weight.path for weight in top.weights] == ["top/kernel", "top/bias"]
    assert tower.can_be_tied
    assert [tower.between(cut) for cut in range(len(graph) + 1)] == [
        False,
        True,
        True,
        *[False] * 5,
    ]

    dense = layers.Dense(4)

    class Borrowing(layers.Layer):
        """Uses another layer's weights."""

        def __init__(self, lender):
            super().__init__()
            self.lender = lender

        def call(self, inputs):
            return keras.ops.matmul(inputs, self.lender.kernel)

    x = inputs = keras.Input((4,))
    model = keras.Model(inputs, Borrowing(dense)(layers.ReLU()(dense(x))))
    (kernel,) = (group for group in read_graph(model).shared)
    assert kernel.operations == (0, 2)


def test_moving_averages_can_not_be_tied():
    graph = read_graph(models.nested())
    assert {group.can_be_tied for group in graph.shared} == {True, False}


def test_what_crosses_a_cut():
    graph = read_graph(models.residual())

    def crossing(cut):
        return [graph.tensors[number].name for number in graph.crossing(cut)]

    assert crossing(1) == ["first"]
    assert crossing(2) == ["first", "inner0"]
    late = [crossing(cut) for cut in range(2, len(graph) - 1)]
    assert all("first" in names for names in late)  # the skip from the first to the last layer
    assert crossing(0) == crossing(len(graph)) == []
    early = read_graph(models.several())
    cut = early.names.index("early") + 1
    assert [early.tensors[number].name for number in early.crossing(cut)] == ["left"]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.dense = layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


class OwnCall(OwnStep):
    def call(self, inputs, **options):
        return super().call(2 * inputs, **options)


def ends():
    inputs = keras.Input((3,))
    return inputs, layers.Dense(2)(inputs)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            Subclassed,
            r"`call` is written in Python.*'own' of class Subclassed.*keras.Model\(x, y\)",
        ),
        (lambda: OwnCall(*ends()), "of class OwnCall"),
        (lambda: keras.Sequential([layers.Dense(2)]), r"Begin it with keras.Input\(shape\)"),
        (lambda: keras.Model(*[keras.Input((3,))] * 2), "no layers to split"),
        (lambda: layers.Dense(2), "Only a Keras model.*Received: Dense"),
    ],
)
def test_a_model_without_a_layer_graph_is_told_what_to_do(build, message):
    with pytest.raises(PartitionError, match=message):
        read_graph(build())


def test_an_own_train_step_keeps_the_graph():
    assert len(read_graph(OwnStep(*ends()))) == 1


def test_a_part_with_an_own_call_is_one_operation():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(2)(Subclassed()(inputs)))
    assert [operation.kind for operation in read_graph(model).operations] == ["Subclassed", "Dense"]
