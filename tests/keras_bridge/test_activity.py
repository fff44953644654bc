"""Activity regularizers of a Keras that sums them over the rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest

from tfdist.errors import UnsupportedError
from tfdist.keras_bridge import activity


def strategy(replicas: int) -> Any:
    return SimpleNamespace(num_replicas_in_sync=replicas, tfdist=SimpleNamespace())


def model(regularizer: str | None) -> Any:
    dense = keras.layers.Dense(2, activity_regularizer=regularizer, name="penalised")
    return keras.Sequential([keras.Input((3,)), keras.Sequential([dense])])


def test_a_layer_is_asked_what_this_keras_does() -> None:
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    assert activity.sums_rows() == (version < (3, 15))


@pytest.mark.parametrize("sums", [False, True])
def test_sums_over_rows_are_refused_between_replicas(
    monkeypatch: pytest.MonkeyPatch, sums: bool
) -> None:
    monkeypatch.setattr(activity, "sums_rows", lambda: sums)
    activity.check(model("l2"), strategy(1))
    activity.check(model(None), strategy(2))
    if not sums:
        activity.check(model("l2"), strategy(2))
        return
    with pytest.raises(UnsupportedError, match=r"layers penalised, Keras 3.*Use Keras 3\.15"):
        activity.check(model("l2"), strategy(2))


def test_fit_and_evaluate_refuse_before_a_step(mirrored: Any) -> None:
    for error in mirrored("keras_bridge.replica_cases:summed_activity"):
        assert error.startswith("UnsupportedError: This version of Keras sums"), error
