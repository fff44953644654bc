"""The best cuts against brute force."""

import itertools

import numpy as np
import pytest

from tfdist.pipeline.cuts import bottleneck, least_bottleneck


def brute_force(costs, crossing):
    """The least (largest cost, bytes across cuts) of all ways to cut."""
    size = len(crossing)
    best = (np.inf, np.inf)
    for cuts in itertools.combinations(range(1, size - 1), len(costs) - 1):
        worst = bottleneck(costs, cuts)
        if np.isfinite(worst):
            best = min(best, (round(worst, 6), sum(crossing[cut] for cut in cuts)))
    return best


def random_problem(generator, parts, operations):
    """Costs that are sums or not, that differ between parts or not, with impossible parts."""
    size = operations + 1
    work = generator.exponential(size=operations)
    if generator.random() < 0.5:
        work = generator.integers(0, 4, operations)
    total = np.concatenate([[0], np.cumsum(work)])
    table = total[None, :] - total[:, None]
    costs = []
    for _ in range(parts):
        cost = table * generator.choice([1.0, generator.uniform(0.5, 2)])
        cost = cost + generator.choice([0, 1]) * generator.exponential(0.3, (size, size))
        cost[generator.random((size, size)) < generator.choice([0, 0.3])] = np.inf
        cost[np.tril_indices(size)] = np.inf
        costs.append(cost)
    return costs, generator.integers(0, 9, size).astype(float)


@pytest.mark.parametrize("seed", range(8))
def test_as_good_as_brute_force(seed):
    generator = np.random.default_rng(seed)
    for _ in range(40):
        parts = int(generator.integers(1, 6))
        costs, crossing = random_problem(generator, parts, int(generator.integers(parts, 10)))
        expected = brute_force(costs, crossing)
        found = least_bottleneck(costs, crossing)
        if not np.isfinite(expected[0]):
            assert found is None
            continue
        worst, cuts = found
        assert worst == pytest.approx(expected[0], abs=1e-5)
        assert worst == bottleneck(costs, cuts)
        assert list(cuts) == sorted(set(cuts))
        assert sum(crossing[cut] for cut in cuts) == pytest.approx(expected[1])


def test_a_deep_model_takes_no_time():
    size = 1200
    work = np.random.default_rng(0).exponential(size=size)
    total = np.concatenate([[0], np.cumsum(work)])
    cost = np.where(
        np.triu(np.ones((size + 1,) * 2), 1) > 0, total[None, :] - total[:, None], np.inf
    )
    worst, cuts = least_bottleneck([cost] * 8, np.zeros(size + 1))
    assert len(cuts) == 7
    assert total[-1] / 8 <= worst <= total[-1] / 8 + work.max()
