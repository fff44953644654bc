"""Slurm: the tasks of a step that `srun` started."""

from __future__ import annotations

from tfdist.cluster.resolvers.base import Found, Resolver, derived_port
from tfdist.cluster.resolvers.slurm_names import expand_counts, expand_hosts, nodes_of_ranks

__all__ = ["Slurm"]

# Steps that aren't srun's: the batch script, the interactive step of salloc, what ssh adopted, ...
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Slurm(Resolver):
    """Reads the variables of a step; TensorFlow's own resolver sorts the hosts as text.

    A batch script has SLURM_PROCID=0 and the task numbers of the whole job too, but it is one
    process: only a step's number shows that srun started this process.
    """

    name = "Slurm"

    def applies(self) -> bool:
        return self.has("SLURM_JOB_ID") or self.has("SLURM_JOBID")

    def find(self) -> Found:
        job = self.text("SLURM_JOB_ID", "SLURM_JOBID")
        outside = self._outside(job)
        if outside:
            return self.alone(f"{outside}: no cluster; `srun` starts one")
        step = self.number("SLURM_STEP_ID", "SLURM_STEPID")
        count = self.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", minimum=1)
        if count == 1:
            return self.alone(f"Slurm step {job}.{step} of one task: no cluster")
        rank = self.number("SLURM_PROCID")
        hosts = self._hosts()
        counts = self._counts(len(hosts), count)
        nodes = self._nodes(counts, rank)
        source = f"Slurm step {job}.{step}, task {rank} of {count} (SLURM_PROCID)"
        return self.tasks([hosts[n] for n in nodes], rank, source, derived_port(job, step))

    def _outside(self, job: str) -> str:
        """Where this process is, if it is no task of a step; else ""."""
        if not self.has("SLURM_PROCID") or not (
            self.has("SLURM_STEP_ID") or self.has("SLURM_STEPID")
        ):
            return f"In Slurm job {job}, outside of a step"
        if self.number("SLURM_STEP_ID", "SLURM_STEPID") >= _FIRST_SPECIAL_STEP:
            return f"In the shell of Slurm job {job}"
        if self._is_inherited(job):
            return f"In the batch script of Slurm job {job}, submitted from within a step"
        # The variable alone proves nothing: sbatch from such a shell passes it on.
        if self.has("SLURM_PTY_PORT") and self.place.is_terminal():
            return f"In the terminal of Slurm job {job} (srun --pty)"
        return ""

    def _is_inherited(self, job: str) -> bool:
        """Whether the variables of the step are those of the shell that sbatch was called in."""
        started = self.place.slurm_step().partition(".")
        if started[0] == job:
            return not started[2].isdecimal()
        # srun sets both for a step's tasks; a batch script gets the first one only.
        both = ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")
        return self.has(*both) and self.text(both[0]) != self.text(both[1])

    def local_rank(self) -> int | None:
        if not self.has("SLURM_LOCALID") or not self.applies():
            return None
        job = self.text("SLURM_JOB_ID", "SLURM_JOBID")
        return None if self._outside(job) else self.number("SLURM_LOCALID")

    def sees_gpus_of_others(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES names all GPUs of the node to each of several tasks.

        It does with --gpus-per-node and --gres; with --gpus-per-task each task sees its own.
        """
        if self.local_rank() is None:
            return False
        visible = [name for name in self.text("CUDA_VISIBLE_DEVICES").split(",") if name.strip()]
        gpus = self.text("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
        on_node = len(gpus.split(",")) if gpus else 0
        if self.has("SLURM_GPUS_ON_NODE"):
            on_node = self.number("SLURM_GPUS_ON_NODE")
        together = len(self.text("SLURM_GTIDS").split(","))
        return together > 1 and len(visible) == on_node > 1

    def _hosts(self) -> list[str]:
        names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
        text = self.text(*names)
        if not text:
            raise self.error(f"{names[0]} is not set", fix="Start the tasks with srun")
        try:
            return expand_hosts(text)
        except ValueError as error:
            raise self.error(
                f"The list of nodes can't be read: {error}",
                received=text,
                fix="Check SLURM_STEP_NODELIST with `scontrol show hostnames`",
            ) from None

    def _counts(self, nodes: int, tasks: int) -> list[int]:
        text = self.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
        if not text:
            raise self.error(
                "SLURM_STEP_TASKS_PER_NODE is not set", fix="Start the tasks with srun"
            )
        try:
            counts = expand_counts(text)
        except ValueError as error:
            raise self.error(
                f"The tasks per node can't be read: {error}",
                received=text,
                fix="Leave SLURM_STEP_TASKS_PER_NODE to srun",
            ) from None
        if len(counts) != nodes or sum(counts) != tasks:
            raise self.error(
                "Slurm's numbers don't agree: the tasks per node must be one number per node, and "
                "together all tasks",
                received=f"{text} on {nodes} nodes, {tasks} tasks",
                fix="Start the tasks with one srun (heterogeneous jobs are not supported)",
            )
        return counts

    def _nodes(self, counts: list[int], rank: int) -> list[int]:
        """The node of each rank: by what SLURM_DISTRIBUTION says, checked against this node."""
        said = self.text("SLURM_DISTRIBUTION").partition(":")[0].partition(",")[0].lower()
        planes: list[int | None] = [None, 1]  # block, cyclic
        if said.startswith("cyclic"):
            planes.reverse()
        elif said.startswith("plane"):
            size = said.partition("=")[2]
            planes = [int(size) if size.isdecimal() else self.number("SLURM_DIST_PLANESIZE")]
        for plane in planes:
            nodes = nodes_of_ranks(counts, plane)
            if self._fits(nodes, rank):
                return nodes
        raise self.error(
            "It can't be told which node runs which task",
            received=f"SLURM_DISTRIBUTION={said or 'unset'}, tasks {self.text('SLURM_GTIDS')} on "
            f"node {self.text('SLURM_NODEID')}, tasks per node {counts}",
            fix="Use srun --distribution=block, cyclic or plane=N",
        )

    def _fits(self, nodes: list[int], rank: int) -> bool:
        if rank >= len(nodes):
            return True  # `tasks` says what is wrong
        node = nodes[rank]
        if self.has("SLURM_NODEID") and self.number("SLURM_NODEID") != node:
            return False
        here = [index for index, other in enumerate(nodes) if other == node]
        if self.has("SLURM_GTIDS"):
            return self.text("SLURM_GTIDS").split(",") == [str(index) for index in here]
        return not self.has("SLURM_LOCALID") or here.index(rank) == self.number("SLURM_LOCALID")
