"""A real Slurm with two nodes on this machine: Debian's `slurm-wlm` and `munge`, started and ended here.

The nodes are loopback addresses, so that their names resolve; each slurmd has its own. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.processes import PERSISTENT, child_environment, deadline, end

__all__ = ["NODES", "PROGRAMS", "Slurm", "is_there", "running"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
NODES = ("127.0.0.1", "127.0.0.2")

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_min_interval=100000
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def is_there() -> bool:
    """Whether its programs are installed, and may be run."""
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


@dataclass(frozen=True)
class Slurm:
    """The running scheduler."""

    folder: Path

    def run(self, *command: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a command of Slurm's in an otherwise clean environment."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=child_environment({"SLURM_CONF": str(self.folder / "slurm.conf")}),
            capture_output=True,
            text=True,
            timeout=deadline(seconds),
        )

    def batch(self, script: str, seconds: float = 60) -> str:
        """Submits a batch script, waits for it, and returns its output."""
        path = self.folder / "job.sbatch"
        path.write_text(script)
        output = self.folder / "job.log"
        done = self.run("sbatch", "--wait", f"--output={output}", str(path), seconds=seconds)
        text = output.read_text() if output.exists() else ""
        assert done.returncode == 0, done.stderr + text
        return text


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """Runs the scheduler until the block is left."""
    sockets = [socket.create_server(("", 0)) for _ in range(3)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    values = {"host": socket.gethostname().partition(".")[0], "folder": folder, "ports": ports}
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(**values))
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {"socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
    files |= {"seed-file": "munge.seed", "key-file": "munge.key"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    daemons = [
        ["munged", "--foreground", "--force", *options],
        ["slurmctld", "-D", "-i", "-f", str(configuration)],
        *(["slurmd", "-D", "-N", node, "-f", str(configuration)] for node in NODES),
    ]
    slurm = Slurm(folder)
    with contextlib.ExitStack() as stack:
        for number, daemon in enumerate(daemons):
            log = stack.enter_context((folder / f"daemon-{number}.log").open("w"))
            process = subprocess.Popen(
                daemon,
                cwd=folder,
                env=child_environment({"SLURM_CONF": str(configuration)}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            PERSISTENT.add(process.pid)
            stack.callback(PERSISTENT.discard, process.pid)
            stack.callback(end, [process], 10.0)
            if daemon[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), folder)
        _wait(lambda: slurm.run("sinfo", "-h", "-N", "-o%t").stdout.split() == ["idle"] * 2, folder)
        yield slurm


def _wait(is_ready, folder: Path) -> None:
    until = time.monotonic() + deadline(60)
    while not is_ready():
        if time.monotonic() > until:
            logs = [f"{path.name}: {path.read_text()[-2000:]}" for path in folder.glob("*.log")]
            raise AssertionError("Slurm does not start:\n" + "\n".join(logs))
        time.sleep(0.2)
