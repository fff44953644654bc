"""One server task of a parameter server cluster, as a user's script would be: it ends with its parent."""

from __future__ import annotations

import os
import threading


def _end_with_parent() -> None:
    while os.read(0, 1):  # nothing, when the parent has closed the pipe or is gone
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from tfdist.strategies import ParameterServerStrategy

    ParameterServerStrategy()
