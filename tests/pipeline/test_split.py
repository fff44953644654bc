"""`tfdist.split`: the best partition, what it says of itself, memory, shared weights, wrong questions."""

import itertools
import re
from xml.etree import ElementTree

import keras
import numpy as np
import pipeline_models as models
import pytest
from keras import layers

import tfdist
from tfdist.errors import PartitionError
from tfdist.models.transformer import gpt
from tfdist.pipeline.costs import measure_costs
from tfdist.pipeline.graph import read_graph


def chain(*widths, inputs=8):
    """Dense layers without biases: d0, d1, ..."""
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            *(layers.Dense(w, use_bias=False, name=f"d{i}") for i, w in enumerate(widths)),
        ],
        name="chain",
    )


def test_the_largest_stage_is_as_small_as_can_be():
    generator = np.random.default_rng(5)
    for stages in (2, 3, 4):
        widths = [int(w) for w in generator.integers(1, 40, 7)]
        model = chain(*widths)
        sizes = [layer.count_params() for layer in model.layers]
        partition = tfdist.split(model, stages, balance="parameters")
        assert partition.slowest == max(plan.parameters for plan in partition.stages)
        assert sum(plan.parameters for plan in partition.stages) == model.count_params()
        best = min(
            max(sum(sizes[i:j]) for i, j in zip((0, *cuts), (*cuts, 7)))
            for cuts in itertools.combinations(range(1, 7), stages - 1)
        )
        assert partition.slowest == best


def test_flops_by_formula_and_by_graph_agree():
    """TensorFlow's profiler, which counts the traced operations, is the second opinion."""

    def own(base):
        return type(f"Own{base.__name__}", (base,), {})

    def build(wrap):
        x = inputs = keras.Input((8, 8, 4))
        x = wrap(layers.Conv2D)(6, 3, padding="same")(x)
        x = wrap(layers.DepthwiseConv2D)(3)(x)
        x = wrap(layers.Conv2D)(6, 3, groups=1, strides=2)(x)
        x = wrap(layers.Reshape)((-1, 6))(x)
        x = wrap(layers.Dense)(5)(x)
        x = wrap(layers.EinsumDense)("abc,cd->abd", output_shape=(None, 7), bias_axes="d")(x)
        return keras.Model(inputs, x)

    formula, graph = (
        measure_costs(read_graph(build(wrap)), rows=2).operations for wrap in (lambda x: x, own)
    )
    assert {cost.flops_source for cost in formula} == {"formula", "none"}
    assert "formula" not in {cost.flops_source for cost in graph}
    assert [c.flops for c in formula] == pytest.approx([c.flops for c in graph], rel=0.02)


def test_flops_of_a_transformer_are_those_of_the_papers():
    """6 operations a parameter and token, forward and backward (Kaplan et al., arXiv 2001.08361)."""
    size = 64
    model = gpt("mini", context=size, vocabulary=8)
    partition = tfdist.split(
        model, 1, balance="flops", batch_size=1, microbatches=1, input_shapes={"tokens": (size,)}
    )
    blocks = sum(w.shape.num_elements() for w in model.weights if "block" in w.path)
    attention = 4 * (2 * 2 * size * size * 192)
    assert partition.stages[0].flops == pytest.approx(2 * blocks * size + attention, rel=0.03)


def test_kept_activations_are_what_the_backward_pass_takes():
    """y = relu(x W1) W2 keeps x, relu(x W1), and nothing for the last linear layer's output."""
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "relu"), layers.Dropout(0.0), layers.Dense(4)]
    )
    partition = tfdist.split(model, 1, balance="flops", batch_size=10, microbatches=1)
    assert partition.stages[0].activation_bytes == 10 * 4 * (8 + 16)


def test_memory_counts_state_and_what_the_schedule_keeps():
    model = chain(16, 16, 16, 16)
    for schedule, kept in (("1f1b", (2, 1)), ("gpipe", (8, 8))):
        partition = tfdist.split(
            model, 2, balance=[2, 2], microbatches=8, batch_size=80, schedule=schedule
        )
        first, second = partition.stages
        for plan, alive in ((first, kept[0]), (second, kept[1])):
            state = 4 * plan.parameters * 4  # weight, gradient, two slots of Adam; float32
            assert plan.memory_bytes == state + alive * plan.activation_bytes
        assert first.activation_bytes == 10 * 4 * (8 + 16)
        lean = tfdist.split(
            model, 2, balance=[2, 2], microbatches=8, batch_size=80, schedule=schedule,
            recompute="full",
        )  # fmt: skip
        assert lean.stages[0].memory_bytes < first.memory_bytes or schedule == "1f1b"


def test_a_limit_moves_the_cut():
    model = chain(64, 64, 4, 4, 4, 4)
    free = tfdist.split(model, 2, balance="parameters", batch_size=4)
    assert [len(plan.operations) for plan in free.stages] == [1, 5]
    tight = (
        tfdist.split(model, 2, balance=[2, 4], batch_size=4, optimizer_slots=0)
        .stages[1]
        .memory_bytes
    )
    moved = tfdist.split(
        model, 2, balance="parameters", batch_size=4, optimizer_slots=0,
        memory_limit=[1_000_000, tight],
    )  # fmt: skip
    assert [len(plan.operations) for plan in moved.stages] == [2, 4]
    assert moved.slowest > free.slowest


def test_the_best_within_a_limit():
    """Against every possible partition, each of which says itself whether it fits."""
    widths = [int(width) for width in np.random.default_rng(8).integers(1, 60, 6)]
    model = chain(*widths)
    options = {"batch_size": 64, "microbatches": 4, "memory_limit": "40kB"}
    fitting = []
    for cuts in itertools.combinations(range(1, 6), 2):
        counts = [j - i for i, j in itertools.pairwise((0, *cuts, 6))]
        try:
            partition = tfdist.split(model, 3, balance=counts, **options)
        except PartitionError:
            continue
        fitting.append(max(plan.flops for plan in partition.stages))
    assert 0 < len(fitting) < 10, "the limit refuses some and not all"
    best = tfdist.split(model, 3, balance="flops", **options)
    assert max(plan.flops for plan in best.stages) == min(fitting)


def test_what_does_not_fit_is_said_with_the_stage_and_the_excess():
    model = chain(256, 256, 256, 256)
    with pytest.raises(PartitionError) as caught:
        tfdist.split(model, 1, balance="flops", memory_limit="2MB", batch_size=4)
    message = str(caught.value)
    assert re.search(r"stage 0 exceeds its memory by 1\.\d+ MB", message)
    assert "limit of 2 MB" in message
    assert "d0 to d3" in message
    partition = tfdist.split(model, 4, balance="flops", memory_limit="2MB", batch_size=4)
    assert max(plan.memory_bytes for plan in partition.stages) <= 2_000_000
    with pytest.raises(PartitionError, match="stage 3 exceeds"):
        tfdist.split(model, 4, balance="flops", memory_limit=["2MB"] * 3 + [1000], batch_size=4)
    with pytest.raises(PartitionError, match="stage 1 exceeds its memory"):
        tfdist.split(model, 2, balance=[1, 3], memory_limit="2MB", batch_size=4)


def test_times_are_measured_and_nothing_else_changes():
    model = models.cnn()
    before = [variable.numpy() for variable in model.variables]
    partition = tfdist.split(model, 2, balance="time", batch_size=256, microbatches=2)
    assert partition.costs.device in ("CPU:0", "GPU:0")
    # The time of an empty call is taken off, so that very small stages may take none.
    assert all(plan.forward_seconds >= 0 <= plan.backward_seconds for plan in partition.stages)
    assert sum(plan.forward_seconds + plan.backward_seconds for plan in partition.stages) > 0
    for variable, value in zip(model.variables, before):
        np.testing.assert_array_equal(variable, value)
    assert partition.simulate().makespan > 0
    assert "forward ms" in str(partition)


def test_the_slow_layer_stands_alone():
    """The times are the machine's, so only an order of magnitude is asked of them."""
    x = inputs = keras.Input((64,))
    for index in range(3):
        x = layers.Dense(64, name=f"quick{index}")(x)
    x = layers.Dense(4096, name="slow")(x)
    x = layers.Dense(4096, name="slower")(x)
    model = keras.Model(inputs, layers.Dense(8, name="end")(x))
    partition = tfdist.split(model, 2, batch_size=256, microbatches=1)
    assert partition.stage_of("slower") == 1
    assert partition.stage_of("quick2") == 0


def test_what_crosses_and_how_large_it_is():
    partition = tfdist.split(models.residual(), 3, balance=["outer0", "outer1"], batch_size=16)
    assert partition.microbatches == 12
    names = {cut: [c.name for c in partition.crossing(cut)] for cut in (1, 2)}
    assert "first" in names[1]
    assert "first" in names[2]
    (skip,) = (crossing for crossing in partition.crossings if crossing.name == "first")
    assert (skip.source, skip.targets) == (0, (1, 2))
    assert (skip.shape, skip.bytes, skip.dtype) == ((2, 8), 64, "float32")


def test_the_parts_are_models():
    model = models.residual()
    partition = tfdist.split(model, 3, balance="flops")
    x = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    found = tfdist.pipeline.run_stages(partition.models(), x)
    np.testing.assert_array_equal(found, model(x))


def test_shared_layers_stay_together_unless_it_is_worth_a_tie():
    model = models.shared()
    together = tfdist.split(model, 2, balance="flops", shared="together")
    assert not together.ties
    assert together.stage_of("tower") == together.stage_of("tower#2")
    assert together.stage_of("top") == together.stage_of("top#2")
    with pytest.raises(PartitionError, match=r"too few places.*tower and tower#2"):
        tfdist.split(model, 6, balance="flops", shared="together")
    tied = tfdist.split(model, 6, balance="flops")
    assert {tie.weights for tie in tied.ties} == {
        ("tower/kernel", "tower/bias"),
        ("top/kernel", "top/bias"),
    }
    assert "Tied: top/kernel, top/bias" in str(tied)


def test_the_embedding_of_a_language_model_is_tied():
    model = gpt("tiny", vocabulary=2000)
    options = {"balance": "flops", "input_shapes": {"tokens": (32,)}}
    partition = tfdist.split(model, 3, **options)
    (tie,) = partition.ties
    assert tie.weights == ("embedding/embeddings",)
    assert (tie.owner, tie.parts[-1], tie.bytes) == (0, 2, 2000 * 64 * 4)
    assert tie.variables == (model.get_layer("embedding").embeddings,)
    with pytest.raises(PartitionError, match="too few places to cut"):
        tfdist.split(model, 3, shared="together", **options)


def test_moving_averages_are_never_tied():
    model = models.nested()
    partition = tfdist.split(model, 2, balance="flops", shared="tied")
    names = [name for name in partition.graph.names if "batch_normalization" in name]
    assert len({partition.stage_of(name) for name in names}) == 1
    with pytest.raises(PartitionError, match=r"calls write to.*batch_normalization"):
        tfdist.split(model, 2, balance=[4, len(partition.graph) - 4])


def test_interleaved_parts():
    model = chain(*[16] * 8)
    partition = tfdist.split(
        model, 2, balance="parameters", schedule="interleaved", chunks=2, microbatches=4
    )
    assert [plan.stage for plan in partition.stages] == [0, 1, 0, 1]
    assert [len(plan.operations) for plan in partition.stages] == [2, 2, 2, 2]
    assert partition.bubble == pytest.approx(1 / 9)
    assert "on stage" in str(partition)


def test_the_table_says_it_all():
    partition = tfdist.split(chain(16, 16, 16), 2, balance="flops", batch_size=32, microbatches=4)
    assert partition.bubble == pytest.approx(1 / 5)
    text = str(partition)
    for part in (
        "chain: 2 stages, 4 microbatches of 8 rows, 1f1b",
        "d0 ... d1 (2)",
        "384",
        "8x16 float32",
        "Bubble: 20.0% predicted",
        "by formula",
    ):
        assert part in text, text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_schedule_is_drawn(tmp_path, suffix):
    if suffix == ".png":
        pytest.importorskip("matplotlib")
    partition = tfdist.split(chain(16, 16, 16), 3, balance="flops", microbatches=4)
    path = tmp_path / f"schedule{suffix}"
    partition.draw(path)
    if suffix == ".png":
        assert path.read_bytes()[:4] == b"\x89PNG"
        return
    root = ElementTree.parse(path).getroot()
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 3 * 4
    assert titles[0].startswith("0F0: 0.000 to")
    text = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert text[:4] == [partition.title(), "stage 0", "stage 1", "stage 2"]


def test_a_picture_that_can_not_be_drawn(tmp_path, monkeypatch):
    partition = tfdist.split(chain(4, 4), 2, balance="flops")
    with pytest.raises(PartitionError, match=r"\.svg or \.png.*schedule\.jpg"):
        partition.draw("schedule.jpg")
    with pytest.raises(PartitionError, match="can't be written"):
        partition.draw(tmp_path / "nowhere" / "schedule.svg")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(PartitionError, match=r"tfdist\[plot\]"):
        partition.draw(tmp_path / "schedule.png")


def test_a_model_whose_weights_were_never_allocated():
    with keras.StatelessScope(initialize_variables=False):
        model = gpt("gpt2", depth=4)
    partition = tfdist.split(model, 4, balance="flops", input_shapes={"tokens": (64,)})
    assert sum(plan.parameters for plan in partition.stages) > 60e6
    assert all(weight._value is None for weight in model.weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 4}, "more stages than operations.*stages=4.*Use at most 3"),
        ({"stages": 0}, "`stages` must be an integer >= 1"),
        ({"stages": 2, "balance": "tim"}, "Unknown balance 'tim'.*Did you mean 'time'"),
        ({"stages": 2, "shared": "tie"}, "Unknown shared 'tie'"),
        ({"stages": 2, "recompute": "yes"}, "Unknown recompute 'yes'"),
        ({"stages": 2, "schedule": "f1b"}, "Unknown schedule"),
        ({"stages": 2, "microbatches": 64}, "a row for each microbatch"),
        ({"stages": 2, "batch_size": 0}, "`batch_size` must be"),
        ({"stages": 2, "balance": [1, 1]}, r"sum 2.*2 numbers >= 1 whose sum is 3"),
        ({"stages": 2, "balance": ["d3"]}, "names 'd3', which the model does not have"),
        ({"stages": 2, "balance": ["d1", "d2"]}, "Give 1 names of layers, or 2 counts"),
        ({"stages": 3, "balance": ["d2", "d1"]}, "in the model's order"),
        ({"stages": 2, "balance": ["d0"]}, "after its first one"),
        ({"stages": 2, "memory_limit": "2 apples"}, "number of bytes.*2 apples"),
        ({"stages": 2, "memory_limit": [1, 2, 3]}, "one for each stage"),
    ],
)
def test_wrong_questions_are_told_so(options, message):
    with pytest.raises(PartitionError, match=message):
        tfdist.split(chain(4, 4, 4), **{"balance": "flops", **options})


def test_an_input_of_unknown_size():
    model = gpt("tiny")
    with pytest.raises(
        PartitionError, match=r"input 'tokens' of shape \(None, None\).*input_shapes"
    ):
        tfdist.split(model, 2, balance="flops")
    with pytest.raises(PartitionError, match=r"no operation 'embeding'.*'embedding'"):
        tfdist.split(model, 2, balance="flops", input_shapes={"tokens": (8,)}).stage_of("embeding")
