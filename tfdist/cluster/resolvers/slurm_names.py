"""The compact lists in Slurm's variables, written out: pure functions.

```text
n[1-3,7,11-12],login0     host names, in the scheduler's own order
2(x3),1                   a number per node
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

__all__ = ["expand_counts", "expand_hosts", "nodes_of_ranks"]

_MOST = 65536  # Slurm's own limit for one list
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> list[str]:
    """Writes a host list out, in its own order.

    Numbers keep their leading zeros; a name may have several brackets, the last of which counts
    fastest.

    Raises:
        ValueError: the text is no host list; the message says where.
    """
    hosts: list[str] = []
    for word in _split(text):
        alternatives = []
        position = 0
        while position < len(word):
            match = _PART.match(word, position)
            if match is None:
                raise ValueError(f"{word!r} has a bracket too much or too few")
            alternatives.append([match[2]] if match[2] else _numbers(match[1], word))
            position = match.end()
        hosts.extend("".join(parts) for parts in product(*alternatives))
        if len(hosts) > _MOST:
            raise ValueError(f"it names more than {_MOST} hosts")
    return hosts


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    words = re.split(r",(?![^\[]*\])", text.strip())
    if not all(word.strip() for word in words):
        raise ValueError("a name between two commas is empty")
    return [word.strip() for word in words]


def _numbers(text: str, word: str) -> list[str]:
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} in {word!r} is neither a number nor a range")
        low, high = match[1], match[2] or match[1]
        if not 0 <= int(high) - int(low) < _MOST:
            raise ValueError(f"the range {part!r} in {word!r} goes backwards or too far")
        found += [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """Writes "2(x3),1" out: [2, 2, 2, 1].

    Raises:
        ValueError: the text is not of this form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None or int(match[2] or 1) > _MOST:
            raise ValueError(f"{part!r} is not of the form N or N(xREPEATS)")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def nodes_of_ranks(counts: Sequence[int], plane: int | None = None) -> list[int]:
    """Which node runs each rank.

    Args:
        counts: tasks of each node.
        plane: ranks that a node gets at a time: 1 is Slurm's `cyclic`, None its `block`, which
            fills a node before the next one.

    Returns:
        The index of the node of each rank.
    """
    left = list(counts)
    nodes: list[int] = []
    while any(left):
        for node, count in enumerate(left):
            taken = count if plane is None else min(plane, count)
            nodes += [node] * taken
            left[node] -= taken
    return nodes
