"""A process with tfdist's MirroredStrategy on two devices, shared by the tests of the bridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.server import CaseServer


@pytest.fixture(scope="session")
def mirrored_process() -> Iterator[CaseServer]:
    with CaseServer("keras_bridge.bridge_cases:start") as server:
        yield server


@pytest.fixture
def mirrored(mirrored_process: CaseServer) -> Callable[..., Any]:
    """Runs a case "module:function" under MirroredStrategy and returns its answer."""

    def run(case: str, **kwargs: Any) -> Any:
        (answer,) = mirrored_process.call("keras_bridge.bridge_cases:call", run=case, **kwargs)
        return answer

    return run
