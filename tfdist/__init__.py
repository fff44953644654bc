"""tfdist: plain Keras 3 `fit` under every tf.distribute strategy, with the numbers of one device.

Importing this package does not import TensorFlow: names are loaded on first use, so that the
launcher and `tfdist --help` start in a fraction of a second.
"""

from __future__ import annotations

import importlib
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

from tfdist import exit_status as exit_status  # has to be there before a script's sys.exit(main())

# A checkout's `./tfdist` has no `strategies` and `models` folders of its own (they are mapped from
# the repository's root at install time); this makes them visible from there too.
__path__ = extend_path(__path__, __name__)

__version__ = "0.1.0"

# Public name -> the module that defines it. A name without ":" is a submodule.
_PUBLIC = {
    "Cluster": "tfdist.cluster:Cluster",
    "Config": "tfdist.config:Config",
    "Runtime": "tfdist.runtime:Runtime",
    "TfdistError": "tfdist.errors:TfdistError",
    "callbacks": "tfdist.callbacks",
    "create": "tfdist.factory:create",
    "data": "tfdist.data",
    "errors": "tfdist.errors",
    "flags": "tfdist.flags",
    "layers": "tfdist.layers",
    "models": "tfdist.models",
    "split": "tfdist.pipeline:split",
    "strategies": "tfdist.strategies",
}

__all__ = [
    "Cluster",
    "Config",
    "Runtime",
    "TfdistError",
    "callbacks",
    "create",
    "data",
    "errors",
    "flags",
    "layers",
    "models",
    "split",
    "strategies",
]

if TYPE_CHECKING:
    from tfdist import callbacks, data, errors, flags, layers, models, strategies
    from tfdist.cluster import Cluster
    from tfdist.config import Config
    from tfdist.errors import TfdistError
    from tfdist.factory import create
    from tfdist.pipeline import split
    from tfdist.runtime import Runtime


def __getattr__(name: str) -> Any:
    """Loads a public name on first use (PEP 562)."""
    target = _PUBLIC.get(name)
    if target is None:
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
