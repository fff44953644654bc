"""YAML documents as a person would write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["dump"]


def dump(documents: Sequence[Any]) -> str:
    """Returns the YAML of the documents, in the order of their keys and without aliases."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=100, allow_unicode=True)
