"""Environments as the schedulers and launchers set them, and the TF_CONFIG that must come out.

The ones of Slurm 22.05, Open MPI 4.1 and MPICH 4.0 were recorded from real jobs on three nodes, less
the variables that say nothing about tasks; the others follow the documentation of each product.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster.resolvers import Place

ALONE: dict[str, Any] = {}


@dataclass(frozen=True)
class Case:
    """An environment, what is to be found in it, and the words of its source or its error."""

    name: str
    environ: str
    expected: dict[str, Any] | None  # None: an error
    says: tuple[str, ...] = ()
    host: str = "somewhere"
    terminal: bool = False
    step: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        pairs = (word.partition("=") for word in shlex.split(self.environ))
        return {name: value for name, _, value in pairs}

    def place(self) -> Place:
        return RecordedPlace(self)


class RecordedPlace(Place):
    def __init__(self, case: Case) -> None:
        self.case = case

    def hostname(self) -> str:
        return self.case.host

    def is_terminal(self) -> bool:
        return self.case.terminal

    def slurm_step(self) -> str:
        return self.case.step

    def read(self, path: str) -> str | None:
        return self.case.files.get(path)


def workers(index: int, *addresses: str) -> dict[str, Any]:
    return task("worker", index, worker=list(addresses))


def task(role: str, index: int, **jobs: list[str]) -> dict[str, Any]:
    return {"cluster": jobs, "task": {"type": role, "index": index}}


def tf_config(content: Any) -> str:
    return "TF_CONFIG=" + shlex.quote(json.dumps(content))


KUBEFLOW = "job-{}-{}.ns.svc:2222"


def kubeflow(role: str, count: int) -> list[str]:
    return [KUBEFLOW.format(role, index) for index in range(count)]


# --- Slurm. A step of srun, less what differs.

STEP = (
    "SLURM_CLUSTER_NAME=rec SLURM_JOBID={job} SLURM_JOB_ID={job} SLURM_JOB_NAME=train "
    "SLURM_JOB_NODELIST={nodes} SLURM_JOB_NUM_NODES={n} SLURM_JOB_PARTITION=main "
    "SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 SLURM_NNODES={n} SLURM_NODELIST={nodes} "
    "SLURM_NPROCS={tasks} SLURM_NTASKS={tasks} SLURM_SRUN_COMM_HOST=10.0.0.1 "
    "SLURM_SRUN_COMM_PORT=44447 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST={nodes} "
    "SLURM_STEP_NUM_NODES={n} SLURM_STEP_NUM_TASKS={tasks} "
    "'SLURM_STEP_TASKS_PER_NODE={per_node}' 'SLURM_TASKS_PER_NODE={per_node}' "
    "SLURM_TOPOLOGY_ADDR_PATTERN=node "
)
OWN = "SLURM_PROCID={} SLURM_NODEID={} SLURM_LOCALID={} SLURM_GTIDS={} "


def step(job: int, nodes: str, n: int, tasks: int, per_node: str, own: str, more: str = "") -> str:
    ours = OWN.format(*own.split())
    return STEP.format(job=job, nodes=nodes, n=n, tasks=tasks, per_node=per_node) + ours + more


BATCH = (
    "SLURMD_NODENAME=n1 SLURM_CPUS_ON_NODE=2 SLURM_GTIDS=0 SLURM_JOBID=9 'SLURM_JOB_CPUS_PER_NODE=2(x2)' "
    "SLURM_JOB_ID=9 SLURM_JOB_NAME=b.sh SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 "
    "SLURM_NNODES=2 SLURM_NODEID=0 SLURM_NODELIST=n[1-2] SLURM_NPROCS=4 SLURM_NTASKS=4 "
    "SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 'SLURM_TASKS_PER_NODE=2(x2)' SLURM_TASK_PID=28022 "
)
SALLOC = (
    "SLURM_JOBID=10 SLURM_JOB_ID=10 SLURM_JOB_NAME=interactive SLURM_JOB_NODELIST=n[1-2] "
    "SLURM_NNODES=2 SLURM_NODELIST=n[1-2] SLURM_NPROCS=2 SLURM_NTASKS=2 'SLURM_TASKS_PER_NODE=1(x2)' "
)
INTERACTIVE = (
    "SLURM_GTIDS=0 SLURM_JOBID=11 SLURM_JOB_ID=11 SLURM_JOB_NODELIST=n[1-2] SLURM_LOCALID=0 SLURM_NNODES=1 "
    "SLURM_NODEID=0 SLURM_NODELIST=n[1-2] SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEPID=4294967290 "
    "SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 "
    "SLURM_TASKS_PER_NODE=1 "
)
LEAKED = (
    "SLURM_GTIDS=0 SLURM_JOB_ID=14 SLURM_JOB_NODELIST=n1 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=2 "
    "SLURM_PROCID=0 SLURM_SRUN_COMM_HOST=127.0.0.1 SLURM_SRUN_COMM_PORT=41453 SLURM_STEPID=0 SLURM_STEP_ID=0 "
    "SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 "
    "'SLURM_STEP_TASKS_PER_NODE=1(x2)' SLURM_TASKS_PER_NODE=2 "
)
TWO = step(1, "n[1-2]", 2, 2, "1(x2)", "1 1 0 1")

SLURM = [
    Case("srun -N2 -n2", TWO, workers(1, "n1:11064", "n2:11065"), ("Slurm step 1.0, task 1 of 2",)),
    Case(
        "srun -N3 -n5",
        step(2, "n[1-3]", 3, 5, "3,1(x2)", "3 1 0 3"),
        workers(3, "n1:11128", "n1:11129", "n1:11130", "n2:11131", "n3:11132"),
    ),
    Case(
        "srun -N2 -n4 --distribution=cyclic",
        step(3, "n[1-2]", 2, 4, "3,1", "1 1 0 1", "SLURM_DISTRIBUTION=cyclic"),
        workers(1, "n1:11192", "n2:11193", "n1:11194", "n1:11195"),
    ),
    Case(
        "srun -N2 -n8 --distribution=plane=2",
        step(
            4,
            "n[1-2]",
            2,
            8,
            "4(x2)",
            "3 1 1 2,3,6,7",
            "SLURM_DISTRIBUTION=plane SLURM_DIST_PLANESIZE=2",
        ),
        workers(3, *(f"n{n}:{11256 + r}" for r, n in enumerate([1, 1, 2, 2, 1, 1, 2, 2]))),
    ),
    Case(
        "srun --gpus-per-task=1",
        step(
            5,
            "n[1-2]",
            2,
            4,
            "2(x2)",
            "3 1 1 2,3",
            "CUDA_VISIBLE_DEVICES=1 SLURM_GPUS_ON_NODE=2 SLURM_STEP_GPUS=1",
        ),
        workers(3, "n1:11320", "n1:11321", "n2:11322", "n2:11323"),
    ),
    Case(
        "srun --mpi=pmi2",
        step(
            8,
            "n[1-2]",
            2,
            2,
            "1(x2)",
            "1 1 0 1",
            "PMI_FD=11 PMI_JOBID=8.0 PMI_RANK=1 PMI_SIZE=2 SLURM_MPI_TYPE=pmi2",
        ),
        workers(1, "n1:11512", "n2:11513"),
        ("Slurm step 8.0",),
    ),
    Case(
        "the scheduler's order, not that of text",
        step(4711, "n[1-11]", 11, 11, "1(x11)", "1 1 0 1"),
        workers(1, *(f"n{n}:{29623 + n}" for n in range(1, 12))),
    ),
    Case(
        "several names in one list",
        step(4712, "n[1-2,07-08],login0", 5, 5, "1(x5)", "4 4 0 4"),
        workers(
            4, *(f"{h}:{29688 + r}" for r, h in enumerate(["n1", "n2", "n07", "n08", "login0"]))
        ),
    ),
    Case(
        "heterogeneous nodes",
        step(4713, "gpu[01-03],big1", 4, 7, "2(x3),1", "6 3 0 6"),
        workers(
            6,
            *("gpu01:29752", "gpu01:29753", "gpu02:29754", "gpu02:29755"),
            *("gpu03:29756", "gpu03:29757", "big1:29758"),
        ),
    ),
    Case(
        "a second step of the job has other ports",
        step(9, "n1", 1, 2, "2", "1 0 1 0,1", "SLURM_STEP_ID=1 SLURM_STEPID=1"),
        workers(1, "n1:17784", "n1:17785"),
        ("Slurm step 9.1",),
    ),
    Case(
        "a chief and a parameter server",
        step(9, "n[1-2]", 2, 4, "2(x2)", "3 1 1 2,3", "TFDIST_ROLES=chief=1,worker=2,ps=1"),
        task("ps", 0, chief=["n1:11576"], worker=["n1:11577", "n2:11578"], ps=["n2:11579"]),
    ),
    Case("another first port", TWO + "TFDIST_PORT=5000", workers(1, "n1:5000", "n2:5001")),
    Case(
        "a large job numbers the tasks of each node",
        step(6, "n[1-40]", 40, 80, "2(x40)", "79 39 1 78,79"),
        workers(79, *(f"n{1 + r // 2}:{11384 + r % 2}" for r in range(80))),
    ),
    Case("a batch script without srun", BATCH, ALONE, ("Slurm job 9", "outside of a step", "srun")),
    Case("a shell of salloc", SALLOC, ALONE, ("Slurm job 10",)),
    Case("the interactive step of salloc", INTERACTIVE, ALONE, ("shell of Slurm job 11",)),
    Case("srun -n1", step(7, "n1", 1, 1, "1", "0 0 0 0"), ALONE, ("one task",)),
    Case(
        "srun -N2 --pty",
        step(12, "n[1-2]", 2, 2, "1(x2)", "0 0 0 0", "SLURM_PTY_PORT=34213"),
        ALONE,
        ("--pty",),
        terminal=True,
    ),
    Case(
        "a step of a job that was submitted from srun --pty",
        step(12, "n[1-2]", 2, 2, "1(x2)", "0 0 0 0", "SLURM_PTY_PORT=34213"),
        workers(0, "n1:11768", "n2:11769"),
    ),
    Case("a batch script submitted from within a step", LEAKED, ALONE, ("submitted from within",)),
    Case(
        "the same, with the numbers of the step",
        step(14, "n[1-2]", 2, 2, "1(x2)", "0 0 0 0"),
        ALONE,
        ("batch script of Slurm job 14",),
        step="14.batch",
    ),
    Case(
        "an unreadable node list",
        step(1, "n[1-", 2, 2, "1(x2)", "1 1 0 1"),
        None,
        ("n[1-", "scontrol show hostnames"),
    ),
    Case(
        "tasks that don't add up", step(1, "n[1-2]", 2, 5, "1(x2)", "1 1 0 1"), None, ("5 tasks",)
    ),
    Case(
        "an arbitrary distribution",
        step(1, "n[1-2]", 2, 4, "2(x2)", "1 1 0 1,2", "SLURM_DISTRIBUTION=arbitrary"),
        None,
        ("which node runs which task", "arbitrary", "--distribution=block"),
    ),
    Case("a rank too many", step(1, "n[1-2]", 2, 2, "1(x2)", "2 1 0 1"), None, ("rank 2",)),
    Case(
        "roles of another number", TWO + "TFDIST_ROLES=worker=3", None, ("TFDIST_ROLES", "3 tasks")
    ),
    Case(
        "roles with a slip",
        TWO + "TFDIST_ROLES=wroker=2",
        None,
        ("TFDIST_ROLES", "chief=1,worker=2"),
    ),
]

# --- MPI launchers

OMPI = (
    "OMPI_APP_CTX_NUM_PROCS=4 OMPI_COMMAND=train OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE={} "
    "OMPI_COMM_WORLD_LOCAL_RANK={} OMPI_COMM_WORLD_LOCAL_SIZE={} OMPI_COMM_WORLD_NODE_RANK={} "
    "OMPI_MCA_ess_base_jobid=19857409 OMPI_UNIVERSE_SIZE=4 PMIX_NAMESPACE=19857409 PMIX_RANK=0 "
)
# What the tasks of mpirun inherit from the step that its helper runs in: one task per node.
HELPER = (
    "SLURM_DISTRIBUTION=cyclic SLURM_GTIDS=1 SLURM_JOB_ID=9 SLURM_JOB_NODELIST=n[1-2] SLURM_LOCALID=0 "
    "SLURM_NODEID=1 SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=2 SLURM_STEP_NODELIST=n[1-2] "
    "SLURM_STEP_NUM_TASKS=2 'SLURM_STEP_TASKS_PER_NODE=1(x2)' 'SLURM_TASKS_PER_NODE=1(x2)' "
)


def ompi(rank: int, size: int, local: int, local_size: int) -> str:
    return OMPI.format(rank, size, local, local_size, local)


HYDRA = "HYDI_CONTROL_FD=7 MPI_LOCALNRANKS={} MPI_LOCALRANKID={} PMI_FD=8 PMI_RANK={} PMI_SIZE={} "
PALS = "PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 PMI_RANK=3 PMI_SIZE=4 PALS_APID=1 "

MPI = [
    Case(
        "mpirun -np 2",
        ompi(1, 2, 1, 2),
        workers(1, "127.0.0.1:14136", "127.0.0.1:14137"),
        ("Open MPI, task 1 of 2", "all on one host"),
    ),
    Case(
        "mpirun within Slurm",
        ompi(2, 4, 0, 2) + HELPER,
        workers(2, "n1:14136", "n1:14137", "n2:14138", "n2:14139"),
        ("Open MPI", "SLURM_JOB_NODELIST"),
        host="n2",
    ),
    Case(
        "mpirun under PBS",
        ompi(2, 3, 0, 1) + "PBS_JOBID=77.head PBS_NODEFILE=/var/spool/pbs/aux/77.head",
        workers(2, "a1:14136", "a1:14137", "a2:14138"),
        ("PBS_NODEFILE",),
        host="a2.cluster.example",
        files={"/var/spool/pbs/aux/77.head": "a1\na1\na2\n"},
    ),
    Case(
        "mpirun under LSF",
        ompi(1, 4, 1, 2) + "LSB_JOBID=5 'LSB_MCPU_HOSTS=c1 2 c2 2'",
        workers(1, "c1:14136", "c1:14137", "c2:14138", "c2:14139"),
        host="c1",
    ),
    Case(
        "mpirun under Grid Engine",
        ompi(3, 4, 1, 2) + "JOB_ID=5 PE_HOSTFILE=/sge/pe_hostfile",
        workers(3, "c1:14136", "c1:14137", "c2:14138", "c2:14139"),
        host="c2",
        files={"/sge/pe_hostfile": "c1 2 all.q@c1 UNDEFINED\nc2 2 all.q@c2 UNDEFINED\n"},
    ),
    Case(
        "mpirun --map-by node",
        ompi(2, 4, 1, 2) + "TFDIST_HOSTS=h1:2,h2:2",
        workers(2, "h1:14136", "h2:14137", "h1:14138", "h2:14139"),
        host="h1",
    ),
    Case(
        "mpirun in SageMaker",
        ompi(1, 2, 0, 1) + """'SM_HOSTS=["algo-1","algo-2"]' SM_CURRENT_HOST=algo-2""",
        workers(1, "algo-1:14136", "algo-2:14137"),
        ("Open MPI", "SM_HOSTS"),
        host="algo-2",
    ),
    Case("mpirun -np 1", ompi(0, 1, 0, 1), ALONE, ("one task",)),
    Case(
        "mpirun over hosts that nothing lists",
        ompi(1, 2, 0, 1),
        None,
        ("TFDIST_HOSTS", "mpirun -x"),
    ),
    Case(
        "mpirun on other hosts than listed",
        ompi(1, 4, 1, 2) + "TFDIST_HOSTS=h1:1,h2:3",
        None,
        ("h1:1, h2:3", "number 1 of 2 on h2", "order of the ranks"),
        host="h2",
    ),
    Case(
        "mpiexec -n 2",
        HYDRA.format(2, 1, 1, 2),
        workers(1, "127.0.0.1:31736", "127.0.0.1:31737"),
        ("MPICH, task 1 of 2",),
    ),
    Case(
        "mpiexec within Slurm",
        HYDRA.format(2, 0, 2, 4) + HELPER,
        workers(2, "n1:11576", "n1:11577", "n2:11578", "n2:11579"),
        ("MPICH",),
        host="n2",
    ),
    Case(
        "mpiexec of HPE under PBS",
        PALS + "PBS_JOBID=77 PBS_NODEFILE=/nodes",
        workers(3, "x1:15928", "x1:15929", "x2:15930", "x2:15931"),
        host="x2",
        files={"/nodes": "x1\nx2\n"},
    ),
    Case(
        "a rank that is no number", ompi(0, 2, 0, 2).replace("RANK=0", "RANK=a", 1), None, ("'a'",)
    ),
]

# --- Hosts that the user lists

HOSTS = [
    Case(
        "hosts with slots and a rank",
        "TFDIST_HOSTS=h1:2,h2:1 TFDIST_RANK=1",
        workers(1, "h1:2222", "h1:2223", "h2:2222"),
        ("TFDIST_HOSTS, task 1 of 3",),
    ),
    Case(
        "a rank found by the host's name",
        "TFDIST_HOSTS=h1.example.org,h2.example.org TFDIST_PORT=7000",
        workers(1, "h1.example.org:7000", "h2.example.org:7000"),
        host="h2",
    ),
    Case(
        "addresses",
        "TFDIST_HOSTS=[fd00::1],[fd00::2] TFDIST_RANK=0",
        workers(0, "[fd00::1]:2222", "[fd00::2]:2222"),
    ),
    Case("several tasks without ranks", "TFDIST_HOSTS=h1:2", None, ("TFDIST_RANK",), host="h1"),
    Case("another host", "TFDIST_HOSTS=h1,h2", None, ("none of the hosts", "host h3"), host="h3"),
    Case("a rank beyond the hosts", "TFDIST_HOSTS=h1,h2 TFDIST_RANK=2", None, ("rank 2",)),
    Case("slots that are none", "TFDIST_HOSTS=h1:x TFDIST_RANK=0", None, ("h1:x",)),
    Case(
        "a port that is too high",
        "TFDIST_HOSTS=h1:2 TFDIST_RANK=0 TFDIST_PORT=65535",
        None,
        ("65535",),
    ),
]

# --- Kubernetes

POD = "KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443 HOSTNAME={} "
JOBSET = (
    POD + "JOB_COMPLETION_INDEX={} JOBSET_NAME=train REPLICATED_JOB_NAME={} JOB_INDEX=0 "
    "TFDIST_SERVICE=train TFDIST_ROLES=chief=1,worker=2,ps=1 "
)
PODS = {
    "chief": ["train-chief-0-0.train:2222"],
    "worker": ["train-worker-0-0.train:2222", "train-worker-0-1.train:2222"],
    "ps": ["train-ps-0-0.train:2222"],
}

KUBERNETES = [
    Case(
        "an Indexed Job",
        POD.format("train-1") + "JOB_COMPLETION_INDEX=1 TFDIST_SERVICE=train TFDIST_WORLD_SIZE=3",
        workers(1, "train-0.train:2222", "train-1.train:2222", "train-2.train:2222"),
        ("Kubernetes Indexed Job train, pod 1 of 3",),
    ),
    Case(
        "a StatefulSet",
        POD.format("trainer-0") + "TFDIST_SERVICE=peers.ml.svc.cluster.local TFDIST_WORLD_SIZE=2",
        workers(0, *(f"trainer-{n}.peers.ml.svc.cluster.local:2222" for n in range(2))),
        ("StatefulSet trainer",),
    ),
    Case(
        "a JobSet's worker",
        JOBSET.format("train-worker-0-1", 1, "worker"),
        task("worker", 1, **PODS),
    ),
    Case(
        "a JobSet's parameter server",
        JOBSET.format("train-ps-0-0", 0, "ps"),
        task("ps", 0, **PODS),
        ("JobSet",),
    ),
    Case("a pod", POD.format("notebook-7f9"), ALONE, ("no TF_CONFIG",)),
    Case(
        "an Indexed Job of independent pods",
        POD.format("sweep-3") + "JOB_COMPLETION_INDEX=3",
        ALONE,
        ("TFDIST_SERVICE",),
    ),
    Case(
        "a service without a number",
        POD.format("train-1") + "TFDIST_SERVICE=train",
        None,
        ("TFDIST_WORLD_SIZE",),
    ),
    Case(
        "the host's network",
        POD.format("gke-node-a")
        + "JOB_COMPLETION_INDEX=1 TFDIST_SERVICE=train TFDIST_WORLD_SIZE=3",
        None,
        ("gke-node-a", "hostNetwork"),
    ),
    Case(
        "too many pods",
        POD.format("t-3") + "TFDIST_SERVICE=t TFDIST_WORLD_SIZE=3",
        None,
        ("rank 3",),
    ),
    Case(
        "a JobSet's job of another name",
        JOBSET.format("train-x-0-0", 0, "x"),
        None,
        ("'x'", "TFDIST_ROLES"),
    ),
]

# --- Managed training

SAGEMAKER = "SM_CURRENT_HOST={} 'SM_HOSTS={}' SM_NUM_GPUS=8 SM_NETWORK_INTERFACE_NAME=eth0 "
RESOURCES = "/opt/ml/input/config/resourceconfig.json"
TPU = "TPU_ACCELERATOR_TYPE={} TPU_WORKER_ID={} TPU_WORKER_HOSTNAMES={} "

CLOUDS = [
    Case(
        "SageMaker",
        SAGEMAKER.format("algo-2", '["algo-1","algo-2"]'),
        workers(1, "algo-1:2222", "algo-2:2222"),
        ("SageMaker, host algo-2 of 2",),
    ),
    Case(
        "SageMaker with an own container",
        "TRAINING_JOB_NAME=job TRAINING_JOB_ARN=arn:aws:sagemaker:eu-west-1:1:training-job/job",
        workers(0, "algo-1:2222", "algo-2:2222"),
        files={RESOURCES: '{"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]}'},
    ),
    Case("SageMaker on one host", SAGEMAKER.format("algo-1", '["algo-1"]'), ALONE, ("one host",)),
    Case(
        "SageMaker without this host", SAGEMAKER.format("algo-3", '["algo-1"]'), None, ("'algo-3'",)
    ),
    Case(
        "SageMaker with a broken list", SAGEMAKER.format("algo-1", "algo-1,algo-2"), None, ("JSON",)
    ),
    Case(
        "a TPU host", TPU.format("v5litepod-8", 0, "localhost"), ALONE, ("Cloud TPU v5litepod-8",)
    ),
    Case(
        "the first host of a TPU slice",
        TPU.format("v5litepod-16", 0, "t0,t1,t2,t3"),
        ALONE,
        ("all 4 hosts",),
    ),
    Case(
        "another host of a TPU slice",
        TPU.format("v5litepod-16", 2, "t0,t1,t2,t3"),
        None,
        ("worker 0 only",),
    ),
    Case("a named TPU", "TPU_NAME=my-tpu TPU_LOAD_LIBRARY=0", ALONE, ("my-tpu",)),
    Case("a Ray worker", "RAY_JOB_ID=01000000 RAY_RAYLET_PID=12", ALONE, ("Ray worker",)),
    Case(
        "Ray Train on one host",
        "RAY_JOB_ID=01000000 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 "
        "MASTER_PORT=41000",
        workers(1, "127.0.0.1:23800", "127.0.0.1:23801"),
    ),
    Case(
        "Ray Train on several hosts",
        "RAY_JOB_ID=01000000 RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.0.0.1",
        None,
        ("TensorflowTrainer",),
    ),
]

# --- TF_CONFIG goes before everything

TF_CONFIG = [
    Case(
        "Kubeflow's TFJob",
        tf_config({**task("worker", 1, worker=kubeflow("worker", 2)), "environment": "cloud"}),
        workers(1, *kubeflow("worker", 2)),
        ("TF_CONFIG",),
    ),
    Case(
        "Kubeflow's dynamic worker",
        tf_config(
            {
                "sparseCluster": {
                    "worker": {"2": KUBEFLOW.format("worker", 2)},
                    "ps": kubeflow("ps", 2),
                },
                "task": {"type": "worker", "index": 2},
            }
        ),
        task("worker", 2, worker=kubeflow("worker", 3), ps=kubeflow("ps", 2)),
    ),
    Case(
        "Kubeflow's parameter server of dynamic workers",
        tf_config(
            {
                "sparseCluster": {"worker": {}, "ps": [KUBEFLOW.format("ps", 1)]},
                "task": {"type": "ps", "index": 1},
            }
        ),
        task("ps", 1, worker=kubeflow("worker", 1), ps=kubeflow("ps", 2)),
    ),
    Case(
        "addresses by index",
        tf_config(
            {
                "cluster": {"worker": {"1": "b:1", "0": "a:1"}},
                "task": {"type": "worker", "index": 1},
            }
        ),
        workers(1, "a:1", "b:1"),
    ),
    Case(
        "TF_CONFIG within Slurm",
        tf_config(workers(0, "a:1", "b:1")) + " " + TWO,
        workers(0, "a:1", "b:1"),
    ),
    Case("an empty TF_CONFIG within Slurm", "TF_CONFIG={} " + TWO, ALONE, ("TF_CONFIG without",)),
    Case(
        "Ray's TensorflowTrainer",
        tf_config(workers(1, "10.0.0.1:4000", "10.0.0.2:4000")) + " RAY_JOB_ID=01000000",
        workers(1, "10.0.0.1:4000", "10.0.0.2:4000"),
    ),
    Case(
        "dynamic workers without servers",
        tf_config(
            {
                "sparseCluster": {"worker": {"1": KUBEFLOW.format("worker", 1)}, "ps": None},
                "task": {"type": "worker", "index": 1},
            }
        ),
        None,
        ("enableDynamicWorker",),
    ),
    Case(
        "addresses by index with a gap",
        tf_config(
            {
                "cluster": {"worker": {"0": "a:1", "2": "b:1"}},
                "task": {"type": "worker", "index": 0},
            }
        ),
        None,
        ("indices 0, 2",),
    ),
    Case("nothing at all", "HOME=/root", ALONE, ("no TF_CONFIG",)),
]

CASES = [*SLURM, *MPI, *HOSTS, *KUBERNETES, *CLOUDS, *TF_CONFIG]
