"""How the bridge replaces functions of Keras."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from support.server import CaseServer

from tfdist.keras_bridge import patching
from tfdist.keras_bridge.patching import Repair, apply_repairs


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of "upstream" with a function and a class; no repair of it outlives the test."""
    module = types.ModuleType("upstream_host")

    def double(value: int) -> int:
        """Doubles."""
        return 2 * value

    class Thing:
        def double(self, value: int) -> int:
            return 2 * value

    module.double, module.Thing = double, Thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "upstream_host", module)
    monkeypatch.setattr(patching, "_INSTALLED", {})
    return module


def plus_one(original: Any, *args: Any) -> int:
    return original(*args) + 1


def test_a_function_and_a_method_are_replaced(host: Any) -> None:
    before = host.double
    apply_repairs(
        [
            Repair("upstream_host", "double", "doubles", plus_one),
            Repair("upstream_host:Thing", "double", "doubles", plus_one),
        ]
    )
    assert host.double(3) == 7
    assert host.Thing().double(3) == 7
    assert host.double._tfdist_original is before
    assert host.double.__doc__ == "Doubles."
    assert host.double.__name__ == "double"


def test_a_repair_is_installed_once(host: Any) -> None:
    table = [Repair("upstream_host", "double", "doubles", plus_one)]
    apply_repairs(table)
    apply_repairs(table)
    assert host.double(3) == 7
    assert patching.installed() == tuple(table)


def test_a_function_that_upstream_has_removed_is_an_error(host: Any) -> None:
    with pytest.raises(AttributeError, match="triple"):
        apply_repairs([Repair("upstream_host", "triple", "triples", plus_one)])
    assert patching.installed() == ()


def test_the_repairs_act_on_tfdist_models_only() -> None:
    """Stock models give the same bits before the bridge is installed, and beside a tfdist model."""
    with CaseServer("keras_bridge.bridge_cases:start_plain") as server:
        ((before, after),) = server.call("keras_bridge.bridge_cases:before_and_after", timeout=120)
    assert len(before) == 4
    assert [name for name in before if before[name] != after[name]] == []
