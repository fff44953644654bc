"""Host libraries that are imported on first use.

The test runner reads the rows only to know their names; the processes that run them pay for TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["keras", "tf"]


class _Lazy:
    """Stands for a module until one of its names is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


keras: Any = _Lazy("keras")
tf: Any = _Lazy("tensorflow")
