"""The recipe of docs/custom-training.md: which way to compute a loss takes the right step (P43)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes import run_group

STEPS = {
    "keras loss": 1.0,
    "compute_average_loss": 1.0,
    "train_step under fit": 1.0,
    "keras loss / replicas": 0.5,
    "reduce_mean": 2.0,
}


def test_the_recipe_takes_the_step_of_one_device() -> None:
    (result,) = run_group(Path(__file__).with_name("recipe_steps.py"), cluster=False, timeout=120)
    assert json.loads(result.stdout.splitlines()[-1]) == pytest.approx(STEPS, rel=1e-4)
