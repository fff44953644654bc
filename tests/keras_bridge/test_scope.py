"""Objects of another scope are named, before anything trains. See also CASES P68."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist.errors import ScopeError
from tfdist.keras_bridge import scope


@pytest.fixture(autouse=True)
def nothing_active() -> Iterator[None]:
    yield
    scope._active.clear()


def strategy(replicas: int = 2) -> Any:
    return SimpleNamespace(num_replicas_in_sync=replicas, tfdist=object())


OURS = strategy()


def model(**attributes: Any) -> Any:
    return SimpleNamespace(
        **{"name": "net", "optimizer": None, "variables": [], "metrics": []} | attributes
    )


def variable(owner: Any, path: str = "dense/kernel") -> Any:
    return SimpleNamespace(path=path, _value=SimpleNamespace(distribute_strategy=owner))


def test_a_plain_model_may_train_where_no_runtime_is_active() -> None:
    scope.refuse_outside_scope(model(), "fit")
    scope.set_active(strategy(replicas=1))
    scope.refuse_outside_scope(model(), "fit")


def test_a_plain_model_is_refused_beside_a_runtime_with_replicas() -> None:
    scope.set_active(OURS)
    with pytest.raises(ScopeError, match=r"`evaluate`.*'net'.*outside.*runtime\.scope"):
        scope.refuse_outside_scope(model(), "evaluate")
    scope.set_active(strategy(replicas=1))
    scope.refuse_outside_scope(model(), "evaluate")


def test_a_model_of_tf_distributes_own_strategy_is_none_of_our_business() -> None:
    scope.set_active(OURS)
    scope.refuse_outside_scope(model(_distribute_strategy=tf.distribute.get_strategy()), "fit")


def test_objects_of_the_same_scope_pass() -> None:
    optimizer = SimpleNamespace(name="adam", _distribution_strategy=OURS)
    scope.check(model(optimizer=optimizer, variables=[variable(OURS)]), OURS)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_optimizer_of_another_scope_is_named(wrapped: bool) -> None:
    optimizer = SimpleNamespace(name="my_adam", _distribution_strategy=strategy())
    if wrapped:
        optimizer = SimpleNamespace(
            name="scale", _distribution_strategy=OURS, inner_optimizer=optimizer
        )
    with pytest.raises(ScopeError, match=r"'my_adam'.*outside the scope.*compile\('adam'"):
        scope.check(model(optimizer=optimizer), OURS)


@pytest.mark.parametrize("owner", [None, strategy()])
def test_the_variable_of_another_scope_is_named(owner: Any) -> None:
    variables = [variable(OURS), variable(owner, "readout/bias")]
    with pytest.raises(ScopeError, match=r"'readout/bias'.*'net'"):
        scope.check(model(variables=variables), OURS)


def test_one_replica_has_plain_variables() -> None:
    single = strategy(replicas=1)
    scope.check(model(variables=[variable(None), SimpleNamespace(path="lazy")]), single)


def test_the_metric_of_another_scope_is_named() -> None:
    def metric(*owners: Any) -> Any:
        return SimpleNamespace(name="auc", variables=[variable(owner) for owner in owners])

    lazy = SimpleNamespace(name="lazy", variables=[SimpleNamespace(path="later", _value=None)])
    scope.check(model(metrics=[metric(OURS, OURS), lazy]), OURS)
    with pytest.raises(ScopeError, match=r"'auc'.*outside the scope.*runtime\.scope"):
        scope.check(model(metrics=[metric(OURS, None)]), OURS)
    scope.check(model(metrics=[metric(None)]), strategy(replicas=1))
