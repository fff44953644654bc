"""Strategy names, and what they build."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import types

import pytest

from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.strategies import registry


def test_names() -> None:
    assert registry.available() == ("single", "mirrored", "multi_worker", "parameter_server", "tpu")
    assert ("auto", *registry.available(), *registry.PLANNED) == registry.NAMES
    assert len(set(registry.NAMES)) == len(registry.NAMES)


@pytest.mark.parametrize("name", ["auto", *registry.available()])
def test_known_names_pass(name: str) -> None:
    registry.check_name(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("mirored", "mirrored"), ("multiworker", "multi_worker"), ("sinlge", "single")],
)
def test_a_slip_is_answered_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*Did you mean '{meant}'.*single, mirrored"):
        registry.check_name(name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"from --strategy.*Use one of: auto, single, mirrored"
    ) as e:
        registry.check_name("zzz", source="--strategy")
    assert "Did you mean" not in str(e.value)
    for planned in registry.PLANNED:
        assert planned not in str(e.value), "what does not exist is not offered"


@pytest.mark.parametrize("name", registry.PLANNED)
def test_planned_names_say_so(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{name}' is not part of this version.*Use one of"):
        registry.check_name(name)
    with pytest.raises(UnsupportedError):
        registry.build(name, Config(), Cluster.local())


def test_build_calls_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("toy_builders")
    module.toy = lambda config, cluster: (config, cluster)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_builders", module)
    monkeypatch.setitem(registry._BUILDERS, "single", "toy_builders:toy")
    config, cluster = Config(), Cluster.local()
    assert registry.build("single", config, cluster) == (config, cluster)


@pytest.mark.parametrize("name", registry.available())
def test_builders_take_a_config_and_a_cluster(name: str) -> None:
    module, _, function = registry._BUILDERS[name].partition(":")
    builder = getattr(importlib.import_module(module), function)
    assert list(inspect.signature(builder).parameters) == ["config", "cluster"]


def test_listing_the_strategies_does_not_import_tensorflow() -> None:
    code = (
        "import sys; from tfdist.strategies import registry; import tfdist.strategies as s; "
        "registry.check_name('mirrored'); dir(s); print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


def test_the_package_has_the_strategies_and_nothing_else() -> None:
    from tfdist import strategies

    assert strategies.__all__ == [
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "ParameterServerStrategy",
        "SingleDeviceStrategy",
        "TPUStrategy",
    ]
    with pytest.raises(AttributeError, match="PipelineStrategy"):
        _ = strategies.PipelineStrategy
