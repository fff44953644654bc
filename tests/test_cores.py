"""How the cores of a host are divided: as pure data, and in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import child_environment, deadline

from tfdist import cores
from tfdist.cores import Share, share

EIGHT = range(8)
TWO_NODES = [[0, 1, 2, 3], [4, 5, 6, 7]]
FOUR_NODES = [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_one_worker_has_tensorflows_own_choice() -> None:
    assert share(EIGHT, cores=8, nodes=TWO_NODES) is None
    assert share([3], cores=1, bound=True) is None


@pytest.mark.parametrize(
    ("workers", "quota", "threads"), [(2, 8, 4), (3, 8, 2), (8, 8, 1), (16, 8, 1), (2, 5, 2)]
)
def test_cores_are_divided_by_the_workers(workers: int, quota: int, threads: int) -> None:
    found = share(EIGHT, cores=quota, workers=workers, local_rank=0)
    assert found == Share(threads, None, f"{quota} cores / {workers} workers on this host")


def test_a_process_that_a_scheduler_has_bound_uses_all_of_its_cores() -> None:
    found = share([2, 3], cores=2, workers=4, local_rank=1, bound=True, nodes=TWO_NODES)
    assert found == Share(2, None, "2 cores of its own, by the scheduler")


@pytest.mark.parametrize(
    ("nodes", "workers", "rank", "cpus"),
    [
        (TWO_NODES, 2, 0, (0, 1, 2, 3)),
        (TWO_NODES, 2, 1, (4, 5, 6, 7)),
        (TWO_NODES, 4, 1, (0, 1, 2, 3)),
        (TWO_NODES, 4, 2, (4, 5, 6, 7)),
        (FOUR_NODES, 2, 1, (2, 3, 6, 7)),
        (TWO_NODES, 3, 1, None),
        (TWO_NODES, 2, None, None),
        (TWO_NODES, 2, 5, None),
        ([list(EIGHT)], 2, 0, None),
        ([[0, 1], [2, 3]], 2, 0, None),  # The nodes don't account for all cores.
        ([[], list(EIGHT)], 2, 0, None),  # A node of memory alone.
    ],
)
def test_workers_stay_on_numa_nodes_where_they_divide_evenly(
    nodes: list, workers: int, rank: int | None, cpus: tuple | None
) -> None:
    found = share(EIGHT, cores=8, nodes=nodes, workers=workers, local_rank=rank)
    assert found is not None
    assert found.cpus == cpus
    assert found.threads == 8 // workers
    assert ("NUMA" in found.why) == (cpus is not None)


def test_lists_of_cores(tmp_path: Path) -> None:
    assert cores.parse_cpus("0-3,8\n") == [0, 1, 2, 3, 8]
    assert cores.parse_cpus("\n") == []
    with pytest.raises(ValueError, match="no list"):
        cores.parse_cpus("0-3;4")
    for name, text in (("node10", "2-3"), ("node2", "0,1"), ("node3", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    assert cores.numa_nodes(tmp_path) == [[0, 1], [2, 3]]
    assert cores.numa_nodes(tmp_path / "nothing") == []


REAL = """
import json, logging, os, sys
logging.basicConfig(level="INFO", format="%(name)s %(message)s")
import tensorflow as tf
from tfdist import cores
cores.apply(2, 1, os.environ)
threading = tf.config.threading
tf.constant(1)
print(json.dumps([
    threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()]))
cores.apply(3, 1, os.environ)
"""


def test_in_a_real_process() -> None:
    environ = child_environment()
    environ.pop("TF_NUM_INTEROP_THREADS")
    done = subprocess.run(
        [sys.executable, "-c", REAL], env=environ, capture_output=True, text=True,
        timeout=deadline(90),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    each = max(1, cores.machine.detect(os.environ).cores // 2)
    assert json.loads(done.stdout) == [each, max(2, each)]
    said = [line for line in done.stderr.splitlines() if line.startswith("tfdist.cores")]
    assert f"threads: {each} intra-op, {max(2, each)} inter-op" in said[0]
    assert "as the script has set them" in said[1]
