"""Dependencies point one way, and the internals of TensorFlow and Keras are touched in one place each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A layer may import itself and those after it. Whoever isn't listed belongs to the public surface.
LAYERS = (
    ("scripts", ("scripts",)),
    ("command line", ("tfdist.cli", "tfdist.__main__")),
    ("factory", ("tfdist.factory", "tfdist.runtime")),
    ("strategies", ("tfdist.strategies",)),
    ("bridge", ("tfdist.keras_bridge",)),
    ("serving", ("tfdist.serving",)),
    ("cluster", ("tfdist.cluster", "tfdist.preflight", "tfdist.preflight.rendezvous")),
    ("errors", ("tfdist.errors",)),
)


def modules() -> Iterator[tuple[str, Path]]:
    """Yields each module of the project by the name it is imported under."""
    for folder, name in (
        ("tfdist", "tfdist"),
        ("strategies", "tfdist.strategies"),
        ("models", "tfdist.models"),
        ("scripts", "scripts"),
    ):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [name, *path.relative_to(ROOT / folder).with_suffix("").parts]
            yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(modules())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yields (dotted name, line) of everything that a file imports when it runs, also inside functions."""
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        node = pending.pop()
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: use absolute imports"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def dotted_uses(path: Path) -> Iterator[tuple[str, int]]:
    """Yields (dotted name, line) of imports, attribute chains, and strings that look like a module."""
    yield from imports(path)
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+", str(node.value)):
            yield str(node.value), node.lineno


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer(name: str) -> int | None:
    """Returns the index of a module's layer, or None when it has none."""
    for index, (_, packages) in enumerate(LAYERS):
        if any(within(name, package) for package in packages):
            return index
    return None


def is_wrong(module: str, name: str) -> bool:
    """Returns whether an import goes up: from a library module to a script, or between layers."""
    if within(name, "scripts"):
        return not within(module, "scripts")
    own, target = layer(module), layer(name)
    if own is None and within(module, "tfdist.models"):  # plain Keras models know no strategy
        own = layer("tfdist.keras_bridge")
    return own is not None and target is not None and target < own


def test_nothing_imports_what_is_above_it() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        for name, line in imports(path)
        if is_wrong(module, name)
    ]
    assert not wrong, f"these imports go up: {wrong}"


@pytest.mark.parametrize(
    ("internals", "rooms"),
    [("keras.src", ("tfdist.keras_bridge",)), ("tensorflow.python", ("tfdist.strategies",))],
)
def test_internals_are_touched_in_one_room(internals: str, rooms: tuple[str, ...]) -> None:
    wrong = [
        f"{module}, line {line}: {name}"
        for module, path in MODULES.items()
        if not any(within(module, room) for room in rooms)
        for name, line in dotted_uses(path)
        if within(name, internals) or within(name, f"tf.{internals.partition('.')[2]}")
    ]
    assert not wrong, f"{internals} is used outside of {rooms}: {wrong}"


def test_the_mapped_folders_go_by_their_full_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES.values()
        for name, line in imports(path)
        if within(name, "strategies") or within(name, "models")
    ]
    assert not wrong, f"import tfdist.strategies and tfdist.models instead of {wrong}"


def test_the_walk_finds_hidden_imports(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import tfdist.factory\n"
        "def f():\n    from tfdist import runtime\n    return keras.src.losses\n"
    )
    assert ("tfdist.runtime", 5) in list(imports(path))
    assert "tfdist.factory" not in dict(imports(path))
    assert "keras.src.losses" in dict(dotted_uses(path))
    assert is_wrong("tfdist.cluster", "tfdist.strategies.registry")
    assert is_wrong("tfdist.models.mlp", "tfdist.create") is False
    assert is_wrong("tfdist.models.mlp", "tfdist.strategies")
    assert not is_wrong("tfdist.factory", "tfdist.strategies")
