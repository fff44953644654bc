"""What this process was told to leave with: Python tells an exit handler nothing about it.

`import tfdist` loads this, at the top of a script, and not later: `sys.exit(main())`, which absl's
`app.run(main)` does too, looks `sys.exit` up before it calls `main`. A bare `raise SystemExit(3)` is
not seen.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["forget", "last"]

_last: Any = None


def last() -> Any:
    """What `sys.exit` (or `exit`, `quit`) was called with last, in the main thread; None: nothing."""
    return _last


def forget() -> None:
    """Forgets what was noted, such as an exit that somebody has caught."""
    global _last
    _last = None


def _note(status: Any) -> None:
    global _last
    if threading.current_thread() is threading.main_thread():
        _last = status


def _noting(leave: Callable[..., Any]) -> Callable[..., Any]:
    def exit(status: Any = None, /) -> None:
        _note(status)
        leave(status)

    exit.__doc__ = leave.__doc__
    return exit


def _install() -> None:
    sys.exit = _noting(sys.exit)  # type: ignore[assignment]
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__name__ == "Quitter":  # absent in `python -S`

        def call(self: Any, code: Any = None) -> None:
            _note(code)
            leave(self, code)

        leave = quitter.__call__
        quitter.__call__ = call  # type: ignore[method-assign]


_install()
