"""NanGuard names the replica, and the input, loss or gradient, in which a NaN arises (case P94)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.server import CaseServer

FIND = "keras_bridge.nan_cases:find"


@pytest.fixture(scope="module")
def replicas() -> Iterator[CaseServer]:
    with CaseServer("keras_bridge.saving_cases:mirrored") as server:
        yield server


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ({"bad": "x", "row": 5}, "DataError: replica 1 of 3: the input x has NaN values"),
        ({"bad": "y", "row": 23}, "DataError: replica 2 of 3: the input y has NaN values"),
        ({"bad": "sample_weight", "row": 12}, "DataError: replica 0 of 3: the input sample_weight"),
        ({"layers": "loss"}, "LossError: replica 0 of 3: the loss has NaN values"),
        ({"layers": "infinity"}, "LossError: replica 0 of 3: the loss has Inf values"),
        ({"layers": "gradient"}, "LossError: replica 0 of 3: the gradient of "),
        ({"layers": "loss", "run_eagerly": True}, "LossError: replica 0 of 3: the loss has NaN"),
        ({}, "no error"),
        ({"rows": 13}, "no error"),  # two replicas have no rows of the last batch
        ({"optimizer": "adam", "rows": 17}, "no error"),
    ],
)
def test_the_first_nan_is_found(replicas: CaseServer, case: dict[str, Any], found: str) -> None:
    result = replicas.call(FIND, **case)[0]
    assert result["guarded"].startswith(found)
    assert result["unguarded"] == "no error", "the guard of a failed fit is still there"
    assert result["restored"]
