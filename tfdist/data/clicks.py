"""Clicks that nobody made: a synthetic data set to train a recommender on, drawn by this module.

    user, item, ...   ids after Zipf's law: the k-th most frequent comes 1/k times as often as the first;
                      a permutation scatters the frequent ones over the table, as hashing would
    price, age, ...   standard normal numbers
    truth             logit = bias + sum of a weight per id + user's vector . item's vector + linear
    click             1 with probability sigmoid(logit)

The truth is drawn from the seed, too, so that rows of `train` tell something about those of `test`.
No row comes from a real person or shop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tfdist.data.plans import DEFAULT_SEED
from tfdist.errors import DataError, explain

__all__ = ["NAME", "NUMERIC", "ROWS", "VOCABULARIES", "Clicks", "synthetic_clicks"]

NAME = "synthetic_clicks"
ROWS = {"train": 100_000, "test": 20_000}
VOCABULARIES = {"user": 2_000, "item": 1_000, "shop": 200, "category": 50, "device": 4}
NUMERIC = 4  # numbers of a row that are no ids

_RANK = 4  # length of the vectors of users and items in the truth
_PAIR = ("user", "item")
_BIAS = -1.3
_ID_SCALE, _PAIR_SCALE, _NUMERIC_SCALE = 1.2, 0.8, 0.5
_STREAMS = ("truth", "train", "test")  # each has random numbers of its own


@dataclass(frozen=True)
class Clicks:
    """Rows, and what only their maker can know.

    Attributes:
        features: int32 [rows, 1] for each name of the vocabularies, and "numeric", float32
            [rows, NUMERIC].
        labels: 1.0 where there was a click, float32 [rows, 1].
        probabilities: with which each was drawn, float32 [rows, 1]. No model can rank the rows
            better than these do.
    """

    features: dict[str, np.ndarray]
    labels: np.ndarray
    probabilities: np.ndarray = field(repr=False)


def synthetic_clicks(
    split: str = "train",
    rows: int | None = None,
    *,
    vocabularies: Mapping[str, int] | None = None,
    exponent: float = 1.0,
    seed: int = DEFAULT_SEED,
) -> Clicks:
    """Draws rows of the data set; the same ones for the same arguments.

    Args:
        split: "train" or "test", which share the truth but no random numbers.
        rows: how many; None takes those of `ROWS`.
        vocabularies: the number of ids of each feature, "user" and "item" among them; None takes
            `VOCABULARIES`.
        exponent: of Zipf's law; 0 makes all ids alike.
        seed: of the truth and the rows.

    Returns:
        The rows.

    Raises:
        DataError: if there is no such split, or a size is wrong.
    """
    sizes = dict(VOCABULARIES if vocabularies is None else vocabularies)
    _check(split, rows, sizes, exponent)
    rows = ROWS[split] if rows is None else rows
    truth = np.random.default_rng([seed, _STREAMS.index("truth")])
    drawn = np.random.default_rng([seed, _STREAMS.index(split)])

    features: dict[str, np.ndarray] = {}
    logits = np.full(rows, _BIAS)
    match = np.full((rows, _RANK), _PAIR_SCALE / np.sqrt(_RANK))
    for name, size in sizes.items():
        weights = truth.normal(scale=_ID_SCALE / np.sqrt(len(sizes)), size=size)
        vectors = truth.normal(size=(size, _RANK)) if name in _PAIR else None
        ids = truth.permutation(size)[_zipf(drawn, size, exponent, rows)]
        logits += weights[ids]
        if vectors is not None:
            match *= vectors[ids]
        features[name] = ids.astype(np.int32)[:, None]
    logits += match.sum(1)
    numeric = drawn.normal(size=(rows, NUMERIC))
    logits += numeric @ truth.normal(scale=_NUMERIC_SCALE, size=NUMERIC)
    features["numeric"] = numeric.astype(np.float32)

    probabilities = 1 / (1 + np.exp(-logits))
    clicked = drawn.random(rows) < probabilities
    return Clicks(
        features, clicked.astype(np.float32)[:, None], probabilities.astype(np.float32)[:, None]
    )


def _zipf(drawn: np.random.Generator, size: int, exponent: float, rows: int) -> np.ndarray:
    """Draws ranks, 0 the most frequent."""
    shares = np.cumsum(1.0 / np.arange(1, size + 1) ** exponent)
    points: np.ndarray = drawn.random(rows) * shares[-1]
    return np.asarray(np.searchsorted(shares, points, side="right"))


def _check(split: str, rows: int | None, sizes: Mapping[str, int], exponent: float) -> None:
    if split not in ROWS:
        raise DataError(
            explain(
                f"{NAME} has no such split, and can't be sliced",
                received=f"split={split!r}",
                fix=f"Use {' or '.join(map(repr, ROWS))}",
            )
        )
    if rows is not None and rows < 1:
        raise DataError(
            explain(
                "`rows` must be a positive integer",
                received=rows,
                fix="Leave it out for the default",
            )
        )
    missing = [name for name in _PAIR if name not in sizes]
    if missing or "numeric" in sizes or any(size < 1 for size in sizes.values()) or exponent < 0:
        raise DataError(
            explain(
                "Each feature has one id at least, 'user' and 'item' are among them, 'numeric' is not, "
                "and Zipf's exponent is not negative",
                received=f"vocabularies={dict(sizes)}, exponent={exponent}",
                fix="Leave them out for the default",
            )
        )
