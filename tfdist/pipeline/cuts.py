"""Where to cut a list of operations so that the slowest part is as fast as can be.

n operations, P parts, cuts 0 = c0 < c1 < ... < cP = n. `cost[p][i, j]` is the cost of operations i to
j-1 as part p; infinity says that the part can't be so. With best[p][j], the smallest possible
largest cost of parts 0 to p that end at j,

    best[p][j] = min over i < j of max(best[p-1][i], cost[p][i, j])

is exact, in O(P * n * n). Among all best partitions the one with the fewest bytes across its cuts is
taken, by a second pass of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["bottleneck", "least_bottleneck"]

# Sums of the same seconds in another order differ in the last digits.
_TOLERANCE = 1e-9


def least_bottleneck(
    costs: Sequence[np.ndarray], crossing: np.ndarray
) -> tuple[float, tuple[int, ...]] | None:
    """Finds the cuts with the smallest largest cost.

    Args:
        costs: for each part, [n+1, n+1]: the cost of operations i to j-1.
        crossing: [n+1], the price of each cut, which decides between equals.

    Returns:
        The largest cost and the P-1 cuts; None if every partition has an infinite cost.
    """
    worst, _ = _pass(costs, np.maximum, np.zeros_like(crossing))
    if not np.isfinite(worst):
        return None
    limit = worst + abs(worst) * _TOLERANCE
    allowed = [np.where(cost <= limit, 0.0, np.inf) for cost in costs]
    _, cuts = _pass(allowed, np.add, crossing)
    return bottleneck(costs, cuts), cuts


def bottleneck(costs: Sequence[np.ndarray], cuts: Sequence[int]) -> float:
    """The largest cost of the parts between the given cuts."""
    edges = (0, *cuts, len(costs[0]) - 1)
    return max(float(cost[i, j]) for cost, i, j in zip(costs, edges, edges[1:]))


def _pass(
    costs: Sequence[np.ndarray], combine: Callable[..., np.ndarray], price: np.ndarray
) -> tuple[float, tuple[int, ...]]:
    """One dynamic programme: combines the costs of the parts, adds the price of the cuts."""
    size = len(price)
    best = np.full(size, np.inf)
    best[0] = 0.0
    choices = []
    for part, cost in enumerate(costs):
        # [i, j]: parts before end at i, this one at j.
        before = best if part == 0 else best + price
        table = combine(before[:, None], cost)
        choices.append(table.argmin(axis=0))
        best = table.min(axis=0)
    cuts: list[int] = []
    end = size - 1
    for choice in reversed(choices[1:]):
        end = int(choice[end])
        cuts.append(end)
    return float(best[-1]), tuple(reversed(cuts))
