"""Reference models, one module each: plain uncompiled Keras models, nothing special about them.

`tfdist.models.get(name)(input_shape, num_classes)` builds one. Listing the names does not import
TensorFlow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfdist.config.fields import did_you_mean
from tfdist.errors import ConfigError, explain

if TYPE_CHECKING:
    import keras

if __name__ != "tfdist.models":
    raise ImportError(
        "Import this package as `tfdist.models`; a second name would make a second set of functions."
    )

__all__ = ["get", "names"]

# Name -> "module:function". A function takes (input_shape, num_classes, **options).
_BUILDERS = {
    "simple_cnn": "tfdist.models.simple_cnn:simple_cnn",
    "mlp": "tfdist.models.mlp:mlp",
    "resnet20": "tfdist.models.resnet:resnet20",
    "resnet50": "tfdist.models.resnet:resnet50",
}


def names() -> tuple[str, ...]:
    """Returns the names that `get` knows."""
    return tuple(_BUILDERS)


def get(name: str) -> Callable[..., keras.Model]:
    """Returns the function that builds a model.

    Args:
        name: one of `names()`.

    Returns:
        A function of `input_shape` (height, width, channels), `num_classes` and the model's own
        options, that returns an uncompiled model with logits, float32, of shape
        [batch, num_classes].

    Raises:
        ConfigError: if no model has this name.
    """
    target = _BUILDERS.get(name)
    if target is None:
        raise ConfigError(
            explain(
                f"Unknown model '{name}'",
                received=f"model={name}",
                fix=did_you_mean(name, _BUILDERS),
            )
        )
    module, _, function = target.partition(":")
    builder: Any = getattr(importlib.import_module(module), function)
    return builder
