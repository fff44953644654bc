"""The recommender: its shapes, its tables, and that it learns."""

import keras
import numpy as np
import pytest

from tfdist.data import synthetic_clicks
from tfdist.data.clicks import NUMERIC, VOCABULARIES
from tfdist.errors import ConfigError
from tfdist.models.recommender import SIZES, recommender

TABLES = {"user": 30, "item": 20, "device": 2}


def test_shapes_and_parameters():
    model = recommender(TABLES, 4)
    assert model.output.shape == (None, 1)
    assert not model.compiled
    tables = sum(TABLES.values()) * (8 + 1)
    bottom = (4 * 32 + 32) + (32 * 8 + 8)
    pairs = 4 * 3 // 2  # of three embeddings and the numeric part
    top = ((pairs + 8) * 64 + 64) + (64 * 32 + 32) + (32 + 1)
    assert model.count_params() == tables + bottom + top


def test_sizes_grow():
    counts = [recommender(TABLES, 4, size=size).count_params() for size in SIZES]
    assert counts == sorted(counts)


def test_shards_do_not_change_the_model():
    """A feature with fewer ids than shards has a shard for each."""
    clicks = synthetic_clicks("test", 16, vocabularies=TABLES)
    predictions = []
    for shards in (None, 3):
        keras.utils.set_random_seed(1)
        model = recommender(TABLES, NUMERIC, shards=shards)
        predictions.append(model.predict(clicks.features, verbose=0))
    assert np.allclose(*predictions, atol=1e-6)
    assert len(model.get_layer("device_embedding").variables) == 2
    assert len(model.get_layer("user_embedding").variables) == 3


def test_logits_stay_float32_in_mixed_precision():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        model = recommender(TABLES, 4)
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    assert model.output.dtype == "float32"
    assert model.get_layer("user_embedding").compute_dtype == "bfloat16"


def test_it_learns_in_a_pass_and_is_loaded_again(tmp_path):
    keras.utils.set_random_seed(1)
    model = recommender(VOCABULARIES, NUMERIC)
    model.compile(
        keras.optimizers.Adagrad(0.2),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    train, test = (synthetic_clicks(split) for split in ("train", "test"))
    model.fit(train.features, train.labels, batch_size=512, epochs=1, verbose=0)
    _, auc = model.evaluate(test.features, test.labels, batch_size=2048, verbose=0)
    assert auc > 0.78  # 0.793 here; 0.862 is the best that there is
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    few = {name: values[:100] for name, values in test.features.items()}
    assert np.allclose(loaded.predict(few, verbose=0), model.predict(few, verbose=0), atol=1e-6)


def test_an_unknown_size_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"Unknown size 'smal'.*small"):
        recommender(TABLES, 4, size="smal")
