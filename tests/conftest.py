"""Fixtures for every test: nothing may leak, and groups of real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support import processes
from support.leaks import Snapshot, leaks


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves environment variables, child processes, or threads behind."""
    before = Snapshot.take()
    yield
    found = leaks(before)
    if found:
        pytest.fail("the test leaked:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture
def run_group() -> Callable[..., list[processes.Result]]:
    """Runs a script file as the workers of one cluster: see `support.processes.run_group`."""
    return processes.run_group
