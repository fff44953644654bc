"""Layers whose behaviour depends on a replica's rows, or on its random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

CASES = "keras_bridge.replica_cases"


def test_masks_differ_between_replicas_and_steps_and_repeat(mirrored: Any) -> None:
    first, again = (mirrored(f"{CASES}:masks", steps=3) for _ in range(2))
    assert first == again, "a seed makes runs equal"
    masks = [tuple(mask) for step in first for mask in step]
    assert len(set(masks)) == 6


def test_the_first_replica_has_one_devices_mask(mirrored: Any) -> None:
    masks = mirrored(f"{CASES}:masks", steps=1)
    assert masks[0][0] == mirrored(f"{CASES}:one_devices_mask")


def test_layers_without_a_seed_differ_too(mirrored: Any) -> None:
    """Two layers made one after the other, on two replicas, under `set_random_seed`."""
    first, again = (mirrored(f"{CASES}:masks", steps=2, seed=None) for _ in range(2))
    assert first == again
    masks = [tuple(mask) for step in first for mask in step]
    assert len(set(masks)) == 8


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_replica_without_rows_leaves_the_statistics_alone(mirrored: Any, rows: int) -> None:
    means = mirrored(f"{CASES}:moving_mean", rows=rows)
    assert means == ([1.0, 0.0] if rows == 1 else [1.0, 1.0])


def test_synchronized_statistics_are_of_all_rows(mirrored: Any) -> None:
    means = mirrored(f"{CASES}:moving_mean", rows=1, synchronized=True)
    np.testing.assert_allclose(means, [1.0, 1.0], rtol=1e-6)
