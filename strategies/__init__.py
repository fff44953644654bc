"""The strategies: tf.distribute's own, made right for Keras 3 `fit`.

Each class has tf.distribute's constructor, so that `tf.distribute.MirroredStrategy()` becomes
`tfdist.strategies.MirroredStrategy()` and nothing else in a script changes. Names are loaded on
first use: listing the strategies does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "tfdist.strategies":
    raise ImportError(
        "Import this package as `tfdist.strategies`; a second name would make a second set of classes."
    )

if TYPE_CHECKING:
    from tfdist.strategies.mirrored import MirroredStrategy
    from tfdist.strategies.multi_worker import MultiWorkerMirroredStrategy
    from tfdist.strategies.parameter_server import ParameterServerStrategy
    from tfdist.strategies.single import SingleDeviceStrategy
    from tfdist.strategies.tpu import TPUStrategy

__all__ = [
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "SingleDeviceStrategy",
    "TPUStrategy",
]

_CLASSES = {
    "MirroredStrategy": "tfdist.strategies.mirrored",
    "MultiWorkerMirroredStrategy": "tfdist.strategies.multi_worker",
    "ParameterServerStrategy": "tfdist.strategies.parameter_server",
    "SingleDeviceStrategy": "tfdist.strategies.single",
    "TPUStrategy": "tfdist.strategies.tpu",
}


def __getattr__(name: str) -> Any:
    """Loads a strategy class on first use (PEP 562)."""
    module = _CLASSES.get(name)
    if module is None:
        raise AttributeError(f"module 'tfdist.strategies' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
