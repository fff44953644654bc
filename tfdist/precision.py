"""Sets the number format of Keras's layers."""

from __future__ import annotations

import logging

__all__ = ["apply", "current"]

logger = logging.getLogger(__name__)


def apply(name: str) -> None:
    """Makes `name` the dtype policy of layers that are created from now on.

    Only "float64" also changes Keras's float type, in which losses and metrics are computed and
    arrays are read: in a 16-bit one, a count of examples would stop growing at 2048 (float16) or
    256 (bfloat16).

    Args:
        name: one of the Config's precisions.
    """
    import keras
    import tensorflow as tf

    keras.config.set_floatx("float64" if name == "float64" else "float32")
    keras.config.set_dtype_policy(name)
    if name in ("mixed_float16", "float16") and not tf.config.get_visible_devices("GPU"):
        logger.warning(
            "%s is slow on a CPU, which has no 16-bit arithmetic of that kind; %s is faster there "
            "and needs no loss scaling",
            name,
            name.replace("float16", "bfloat16"),
        )


def current() -> str:
    """The name of Keras's present dtype policy."""
    import keras

    return str(keras.config.dtype_policy().name)
