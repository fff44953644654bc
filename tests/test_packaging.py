"""What is installed: every folder is in the wheel, one import package, and nothing heavy at import."""

from __future__ import annotations

import configparser
import json
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import child_environment, deadline

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = SETTINGS["tool"]["setuptools"]["packages"]
MAPPED = {"strategies": "tfdist.strategies", "models": "tfdist.models"}

# These start in a fraction of a second, and answer before TensorFlow is there.
LIGHT = (
    "tfdist",
    "tfdist.__main__",
    "tfdist.cli",
    "tfdist.cluster",
    "tfdist.cluster.resolvers",
    "tfdist.config",
    "tfdist.errors",
    "tfdist.flags",
    "tfdist.launcher",
    "tfdist.manifests",
    "tfdist.models",
    "tfdist.preflight",
    "tfdist.strategies",
    "tfdist.strategies.registry",
)
HEAVY = ("tensorflow", "keras", "numpy", "h5py", "tensorflow_datasets")

# Imports each module in turn and says after each which heavy packages are there, and the time it took.
PROBE = """
import importlib, json, sys, time
light, heavy = json.loads(sys.argv[1])
report, began = {}, time.perf_counter()
for name in light:
    importlib.import_module(name)
    report[name] = [h for h in heavy if h in sys.modules]
print(json.dumps([report, time.perf_counter() - began]))
"""


def folders() -> set[str]:
    """Returns the dotted name of every folder of the package that holds Python files."""
    found = set()
    for folder, name in {"tfdist": "tfdist", **MAPPED}.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.parent.relative_to(ROOT / folder).parts
            found.add(".".join([name, *parts]))
    return found


def test_the_package_list_equals_the_folders() -> None:
    assert sorted(PACKAGES) == sorted(folders())


@pytest.mark.parametrize("folder", sorted(MAPPED))
def test_mapped_folders_stay_flat(folder: str) -> None:
    nested = [path for path in (ROOT / folder).iterdir() if path.is_dir()]
    assert [path.name for path in nested if path.name != "__pycache__"] == []


@pytest.mark.parametrize("folder", sorted(MAPPED))
def test_mapped_folders_refuse_a_second_name(folder: str) -> None:
    with pytest.raises(ImportError, match=f"tfdist.{folder}"):
        runpy.run_path(str(ROOT / folder / "__init__.py"), run_name=folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built from a copy of the sources: a stale `build/` in the checkout would leak into it."""
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("tfdist", *MAPPED):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheel")
    result = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", target, source],
        capture_output=True,
        text=True,
        timeout=deadline(120),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        yield archive


def test_the_wheel_holds_tfdist_alone(wheel: zipfile.ZipFile) -> None:
    roots = {name.partition("/")[0] for name in wheel.namelist()}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"tfdist"}


def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{name.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, name in {"tfdist": "tfdist", **MAPPED}.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    found = {name for name in wheel.namelist() if name.endswith(".py")}
    assert found == expected


def test_the_wheel_holds_the_digits_and_the_type_marker(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "tfdist/py.typed" in names
    data = {n.rpartition("/")[2] for n in names if n.startswith("tfdist/data/digits/")}
    assert {"digits.csv.gz", "ATTRIBUTION.md"} <= data


def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    info = next(n.partition("/")[0] for n in wheel.namelist() if ".dist-info/" in n)
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert parser["console_scripts"]["tfdist"] == "tfdist.cli:main"
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()
    assert "Requires-Python: <3.14,>=3.10" in wheel.read(f"{info}/METADATA").decode()


def test_light_modules_do_not_import_tensorflow() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([LIGHT, HEAVY])],
        capture_output=True,
        text=True,
        timeout=deadline(60),
        env=child_environment(),
    )
    assert result.returncode == 0, result.stderr
    report, seconds = json.loads(result.stdout)
    assert report == {name: [] for name in LIGHT}
    assert seconds < deadline(2.0), f"importing the light modules took {seconds:.1f} s"


def test_the_command_works_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tfdist", "--help"],
        capture_output=True,
        text=True,
        timeout=deadline(60),
        env=child_environment(),
    )
    assert result.returncode == 0, result.stderr
    assert "run" in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert imported.isdisjoint(HEAVY)
