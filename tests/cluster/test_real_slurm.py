"""A real Slurm with two nodes: what its tasks resolve, and the digits trained by a manifest's script."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support import slurm

from tfdist.config import Config
from tfdist.manifests import Job, SlurmOptions, render_slurm

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "tests" / "manifests" / "probe.py"
COMMAND = f"{sys.executable} {PROBE}"
A, B = slurm.NODES

pytestmark = pytest.mark.skipif(not slurm.is_there(), reason="no Slurm here, or not root")


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with slurm.running(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def seen(text: str) -> dict[int, dict]:
    """What the probes of a job printed, by rank; -1 for one without a cluster."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["tf_config"].get("task", {"index": -1})["index"]: line for line in lines}


def script(lines: str, nodes: int = 2, tasks: int = 4) -> str:
    options = f"--nodes={nodes} --ntasks={tasks} --ntasks-per-node={tasks // nodes}"
    return f"#!/bin/bash\n#SBATCH {options}\n{lines}\n"


@pytest.mark.parametrize(
    ("option", "hosts"),
    [
        ("", [A, A, B, B]),
        ("--distribution=cyclic", [A, B, A, B]),
        ("--distribution=plane=1", [A, B, A, B]),
    ],
)
def test_a_step(scheduler, option, hosts):
    found = seen(scheduler.batch(script(f"srun {option} {COMMAND}")))
    assert sorted(found) == [0, 1, 2, 3]
    clusters = {json.dumps(line["tf_config"]["cluster"]) for line in found.values()}
    (cluster,) = map(json.loads, clusters)
    addresses = cluster["worker"]
    assert [address.partition(":")[0] for address in addresses] == hosts
    assert len({address.partition(":")[2] for address in addresses}) == 4


def test_what_is_no_cluster(scheduler):
    assert list(seen(scheduler.batch(script(COMMAND)))) == [-1]
    assert list(seen(scheduler.batch(script(f"srun --ntasks=1 --nodes=1 {COMMAND}")))) == [-1]
    shell = scheduler.run("salloc", "--nodes=2", "--ntasks=2", *COMMAND.split())
    assert list(seen(shell.stdout)) == [-1]


def test_a_batch_script_submitted_from_within_a_step(scheduler):
    inner = scheduler.folder / "inner.sbatch"
    inner.write_text(script(COMMAND, tasks=2))
    log = scheduler.folder / "inner.log"
    submit = f"[ $SLURM_PROCID = 1 ] || exit 0; sbatch --output={log} {inner}"
    scheduler.batch(script(f"srun bash -c '{submit}'", tasks=2))
    scheduler.batch(script("true", tasks=2))  # queued behind it
    assert list(seen(log.read_text())) == [-1]


@pytest.mark.slow
def test_the_manifest_trains_the_digits_on_two_nodes(scheduler):
    config = Config().replace(strategy="multi_worker", global_batch_size=64, seed=1, devices="cpu")
    job = Job(
        script=str(ROOT / "scripts" / "train.py"),
        arguments=("--dataset=digits", "--epochs=3", "--model=mlp"),
        config=config,
        workers=2,
        python=sys.executable,
    )
    text = scheduler.batch(render_slurm(job, SlurmOptions(nodes=2)), seconds=240)
    assert "2 workers x 1 device = 2 replicas" in text
    assert float(re.findall(r"test accuracy: ([0-9.]+)", text)[0]) > 0.8
