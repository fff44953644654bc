"""Replaces one file or folder over and over, until it is killed.

    python atomic_writer.py TARGET file|folder LAST_VERSION

Prints a line once the first version is in place. Every file holds its version and a digest.
"""

from __future__ import annotations

import hashlib
import os
import sys

from tfdist.keras_bridge import atomic


def write(path: str, version: int, size: int) -> None:
    body = os.urandom(size)
    with open(path, "wb") as file:
        file.write(b"%d\n%s\n" % (version, hashlib.sha256(body).hexdigest().encode()))
        for start in range(0, size, 4096):
            file.write(body[start : start + 4096])
            file.flush()


def main() -> None:
    target, kind, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
    version = last
    while True:
        version += 1
        with atomic.replacing(target) as staged:
            if kind == "file":
                write(staged, version, 400_000)
            else:
                os.makedirs(os.path.join(staged, "variables"))
                for index in range(5):
                    write(os.path.join(staged, "variables", str(index)), version, 40_000)
        if version == last + 1:
            print("written", flush=True)


if __name__ == "__main__":
    main()
