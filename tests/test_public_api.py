"""The public surface: exactly these names, and every one of them resolves."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
from support.processes import child_environment, deadline

PUBLIC = {
    "tfdist": {
        "Cluster",
        "Config",
        "Runtime",
        "TfdistError",
        "callbacks",
        "create",
        "data",
        "errors",
        "flags",
        "layers",
        "models",
        "split",
        "strategies",
    },
    "tfdist.errors": {
        "ClusterError",
        "ConfigError",
        "DataError",
        "LaunchError",
        "LossError",
        "PartitionError",
        "SaveError",
        "ScopeError",
        "TfdistError",
        "UnsupportedError",
        "explain",
    },
    "tfdist.strategies": {
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "ParameterServerStrategy",
        "SingleDeviceStrategy",
        "TPUStrategy",
    },
}

# In a process of its own: TensorFlow is loaded, and the test process must not depend on who ran before.
RESOLVE = """
import importlib, json, sys
report = {}
for module_name in json.loads(sys.argv[1]):
    module = importlib.import_module(module_name)
    report[module_name] = [n for n in module.__all__ if getattr(module, n, None) is None]
print(json.dumps(report))
"""


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_all_lists_exactly_the_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) == PUBLIC[name]
    assert sorted(module.__all__) == list(module.__all__)
    assert set(module.__all__) <= set(dir(module))


def test_every_public_name_resolves() -> None:
    modules = [*PUBLIC, "tfdist.callbacks", "tfdist.data", "tfdist.layers", "tfdist.models"]
    result = subprocess.run(
        [sys.executable, "-c", RESOLVE, json.dumps(modules)],
        capture_output=True,
        text=True,
        timeout=deadline(120),
        env=child_environment(),
    )
    assert result.returncode == 0, result.stderr
    unresolved = json.loads(result.stdout.splitlines()[-1])
    assert unresolved == {name: [] for name in modules}


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("tfdist", "tfdist.strategies"):
        with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
            importlib.import_module(name).nonesuch  # noqa: B018
