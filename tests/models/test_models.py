"""The reference models: shapes, sizes that the papers state, float32 logits, and their registry."""

import subprocess
import sys

import pytest

from tfdist import models
from tfdist.errors import ConfigError

# Trainable parameters: the CNN and MLP by hand; ResNet-20 as the paper counts it (0.27 M).
CASES = [
    ("simple_cnn", (8, 8, 1), 10, 1 * 9 * 32 + 32 + 6 * 6 * 32 * 10 + 10),
    ("mlp", (8, 8, 1), 10, 64 * 256 + 256 + 256 * 256 + 256 + 2560 + 10),
    ("resnet20", (32, 32, 3), 10, None),
    ("resnet50", (32, 32, 3), 7, None),
]


@pytest.mark.parametrize(("name", "shape", "classes", "parameters"), CASES)
def test_builds_logits(name, shape, classes, parameters):
    model = models.get(name)(shape, classes)
    assert model.name == name
    assert not model.compiled
    assert model.output.shape == (None, classes)
    count = sum(int(weight.shape.num_elements()) for weight in model.trainable_variables)
    if parameters is not None:
        assert count == parameters
    elif name == "resnet20":
        assert 0.26e6 < count < 0.28e6


def test_logits_stay_float32_in_mixed_precision():
    import keras

    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = models.get("simple_cnn")((8, 8, 1))
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    assert model.output.dtype == "float32"
    assert model.layers[1].compute_dtype == "float16"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"Unknown model 'simple_cn'.*simple_cnn"):
        models.get("simple_cn")


def test_a_depth_that_is_no_resnet_is_refused():
    from tfdist.models.resnet import cifar_resnet

    with pytest.raises(ConfigError, match="6n\\+2"):
        cifar_resnet(depth=21)


def test_listing_does_not_import_tensorflow():
    code = "import sys, tfdist; print(tfdist.models.names(), 'tensorflow' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    assert "simple_cnn" in out.stdout
    assert out.stdout.strip().endswith("False")
