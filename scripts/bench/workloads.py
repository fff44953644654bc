"""The models and the input that every contender trains, in Keras and in PyTorch.

The images are random: only the speed matters, and nothing has to be downloaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES = 10


def images(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `count` grey images # [count, size, size, 1] and their labels."""
    generator = np.random.default_rng(0)
    x = generator.random((count, size, size, 1), dtype=np.float32)
    return x, generator.integers(0, CLASSES, count)


def keras_model(name: str, size: int) -> Any:
    """Builds `simple_cnn` or `mlp` of `tfdist.models`, which are plain Keras models."""
    from tfdist import models

    return models.get(name)((size, size, 1), CLASSES)


def torch_model(name: str, size: int) -> Any:
    """Builds the same model in PyTorch; images come as # [batch, 1, size, size]."""
    from torch import nn

    if name == "simple_cnn":
        body = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten()]
        width = 32 * (size - 2) ** 2
    elif name == "mlp":
        body = [nn.Flatten(), nn.Linear(size**2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        width = 256
    else:
        raise ValueError(f"No such model: {name}; there are simple_cnn and mlp.")
    return nn.Sequential(*body, nn.Linear(width, CLASSES))
