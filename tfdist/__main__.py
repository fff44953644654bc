"""`python -m tfdist` is the command `tfdist`."""

from __future__ import annotations

from tfdist.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
