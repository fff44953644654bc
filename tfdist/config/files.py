"""Reads a settings file (YAML or JSON) into a mapping; errors name file and line."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from tfdist.errors import ConfigError, explain

__all__ = ["read_mapping"]

_LARGEST = 1 << 20  # bytes; a settings file is small, a checkpoint given by mistake is not


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the file's top-level mapping.

    Args:
        path: a `.json` file, or YAML under any other name.

    Returns:
        The mapping; empty for an empty YAML file.

    Raises:
        ConfigError: the file is missing or unreadable, is not valid YAML or JSON, repeats a key,
            or holds something other than a mapping.
    """
    name = os.fspath(path)
    text = _read_text(name)
    if Path(name).suffix.lower() == ".json":
        content = _parse_json(name, text)
    else:
        content = _parse_yaml(name, text)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _error(
            "A settings file must hold a mapping of names to values",
            name,
            f"its top level is a {type(content).__name__}",
            "Write lines such as `strategy: mirrored`",
        )
    return content


def _error(problem: str, name: str, received: str, fix: str) -> ConfigError:
    return ConfigError(explain(problem, received=received, source=name, fix=fix))


def _read_text(name: str) -> str:
    path = Path(os.path.expanduser(name))
    try:
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise _error(
                "The settings file is too large to be one",
                name,
                f"{path.stat().st_size} bytes",
                "Give a YAML or JSON file of settings",
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise _error(
            "The settings file does not exist",
            f"working directory {os.getcwd()}",
            name,
            "Check the path",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise _error(
            "The settings file can't be read", name, str(error), "Give a readable UTF-8 file"
        ) from None


def _parse_json(name: str, text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            raise _duplicate(name, next(key for key in keys if keys.count(key) > 1))
        return result

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise _error(
            "The settings file is not valid JSON",
            name,
            f"line {error.lineno}, column {error.colno}: {error.msg}",
            "Correct that line",
        ) from None


def _parse_yaml(name: str, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except _DuplicateKeyError as error:
        raise _duplicate(name, error.key, error.line) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _error(
            "The settings file is not valid YAML",
            name,
            place + str(getattr(error, "problem", None) or error),
            "Correct that line",
        ) from None


def _duplicate(name: str, key: Any, line: int | None = None) -> ConfigError:
    where = f" (line {line})" if line else ""
    return _error("A setting is given twice", name, f"{key!r}{where}", "Keep one of the two")


class _DuplicateKeyError(Exception):
    def __init__(self, key: Any, line: int) -> None:
        super().__init__(key)
        self.key, self.line = key, line


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            if key_node.value in seen:
                raise _DuplicateKeyError(key_node.value, key_node.start_mark.line + 1)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)
