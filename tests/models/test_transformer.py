"""The transformers: the sizes that their papers publish, causality, padding, tied weights, saving."""

import keras
import numpy as np
import pytest

from tfdist.errors import ConfigError
from tfdist.models.transformer import BERT, GPT, TransformerSize, bert, gpt

# Weights of the published checkpoints: OpenAI's gpt-2 (the paper rounds them; its 117 M is a known
# slip for 124 M) and Google's uncased BERT with its pooler.
PUBLISHED = [
    (GPT["gpt2"], 124_439_808),
    (GPT["gpt2_medium"], 354_823_168),
    (GPT["gpt2_large"], 774_030_080),
    (GPT["gpt2_xl"], 1_557_611_200),
    (BERT["base"], 109_482_240),
    (BERT["large"], 335_141_888),
]
# Turc et al., table 1: millions, to the digits given there; with the heads of pre-training.
ROUNDED = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110.1}


@pytest.mark.parametrize(("size", "published"), PUBLISHED)
def test_parameters_by_arithmetic_are_the_published_ones(size, published):
    assert size.parameters == published


@pytest.mark.parametrize(("name", "millions"), ROUNDED.items())
def test_small_berts_have_the_sizes_of_their_paper(name, millions):
    assert BERT[name].parameters / 1e6 == pytest.approx(millions, rel=0.015)


@pytest.mark.parametrize(
    ("build", "size"),
    [(gpt, "tiny"), (gpt, "mini"), (gpt, "gpt2"), (bert, "tiny"), (bert, "base")],
)
def test_the_model_has_the_parameters_of_the_arithmetic(build, size):
    with keras.StatelessScope(initialize_variables=False):  # the large ones are never allocated
        model = build(size)
    sizes = (GPT if build is gpt else BERT)[size]
    assert sum(int(np.prod(weight.shape)) for weight in model.weights) == sizes.parameters
    assert not model.compiled


def test_the_decoder_sees_the_past_only():
    model = gpt("tiny")
    tokens = np.random.default_rng(0).integers(0, 256, (2, 12)).astype("int32")
    changed = tokens.copy()
    changed[:, 7] += 1
    before, after = model(tokens).numpy(), model(changed).numpy()
    assert before.shape == (2, 12, 256)
    np.testing.assert_allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert np.abs(before[:, 7:] - after[:, 7:]).max(axis=-1).min() > 1e-4


def test_the_encoder_does_not_see_padding():
    model = bert("tiny", vocabulary=50, context=16)
    tokens = np.random.default_rng(0).integers(1, 50, (2, 8)).astype("int32")
    longer = np.pad(tokens, ((0, 0), (0, 5)))
    alone = model({"tokens": tokens, "segments": np.zeros_like(tokens)})
    padded = model({"tokens": longer, "segments": np.zeros_like(longer)})
    np.testing.assert_allclose(alone["pooled"], padded["pooled"], atol=1e-5)
    np.testing.assert_allclose(alone["sequence"], padded["sequence"][:, :8], atol=1e-5)
    assert alone["pooled"].shape == (2, 128)
    other = model({"tokens": tokens, "segments": np.ones_like(tokens)})
    assert np.abs(other["pooled"] - alone["pooled"]).max() > 1e-4


def test_the_embedding_is_the_last_layer_too():
    model = gpt("tiny", dropout=0.1)
    assert [w.path for w in model.weights if 256 in w.shape[:1]][:1] == ["embedding/embeddings"]
    assert model.get_layer("logits").count_params() == 0
    assert "block1_dropout2" in [layer.name for layer in model.layers]


def test_logits_stay_float32_in_mixed_precision():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        model = gpt("tiny")
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    assert model.output.dtype == "float32"
    assert model(np.zeros((1, 4), "int32")).dtype == "float32"


@pytest.mark.parametrize("build", [gpt, bert])
def test_a_saved_model_loads(build, tmp_path):
    model = build("tiny", context=16, vocabulary=40)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    tokens = np.arange(8, dtype="int32")[None]
    inputs = tokens if build is gpt else {"tokens": tokens, "segments": 0 * tokens}
    for one, other in zip(*(keras.tree.flatten(m(inputs)) for m in (model, loaded))):
        np.testing.assert_array_equal(one, other)


def test_sizes_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match=r"Unknown size 'gpt3'.*Did you mean 'gpt2'"):
        gpt("gpt3")
    with pytest.raises(ConfigError, match=r"no size `widht`.*'width'"):
        gpt("tiny", widht=3)
    with pytest.raises(ConfigError, match="`heads` must divide `width`"):
        TransformerSize(10, 10, 10, 1, 3)
    with pytest.raises(ConfigError, match="`depth` must be at least 1"):
        bert("tiny", depth=0)
