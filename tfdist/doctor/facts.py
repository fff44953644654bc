"""The snapshot that the checks judge: plain data, so that it goes through JSON as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ClusterFacts",
    "Disk",
    "Facts",
    "Gpu",
    "GpuTool",
    "HostFacts",
    "Interface",
    "Limits",
    "TaskFacts",
    "TensorFlowFacts",
]


@dataclass(frozen=True)
class HostFacts:
    """The machine.

    Attributes:
        name: its host name.
        addresses: what the name resolves to; empty when it doesn't.
        system: operating system and kernel.
        container: whether this looks like a container.
        cores: cores of the machine.
        allowed_cores: cores that this process may use, by affinity and by the container's quota.
        numa_nodes: NUMA nodes of the machine.
        cpu: the processor's name.
        cpu_flags: those of its abilities that matter here.
        memory: bytes, the container's limit where it is smaller; 0 when unknown.
        memory_free: bytes that are available.
    """

    name: str = ""
    addresses: tuple[str, ...] = ()
    system: str = ""
    container: bool = False
    cores: int = 1
    allowed_cores: int = 1
    numa_nodes: int = 1
    cpu: str = ""
    cpu_flags: tuple[str, ...] = ()
    memory: int = 0
    memory_free: int = 0


@dataclass(frozen=True)
class Interface:
    """A network interface that is up."""

    name: str
    addresses: tuple[str, ...] = ()
    speed: int = 0
    """Mbit/s; 0 when unknown."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it."""

    index: int
    name: str
    uuid: str = ""
    memory: int = 0
    """MiB."""
    memory_used: int = 0
    """MiB."""
    compute_capability: str = ""


@dataclass(frozen=True)
class GpuTool:
    """What nvidia-smi says.

    Attributes:
        path: where it is; "" when there is none.
        driver: version of the driver.
        gpus: the GPUs, those included that CUDA_VISIBLE_DEVICES hides.
        topology: how they are connected, as `nvidia-smi topo -m` draws it.
        problem: why nothing could be read.
        device_files: how many /dev/nvidiaN there are.
    """

    path: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    topology: str = ""
    problem: str = ""
    device_files: int = 0


@dataclass(frozen=True)
class TensorFlowFacts:
    """What TensorFlow and Keras say of themselves, in a process of their own.

    Attributes:
        version: TensorFlow's; "" when it could not be imported.
        keras: Keras's version.
        backend: Keras's backend.
        keras_of_tensorflow: the version behind `tf.keras`.
        gpus: the GPUs that it sees: names with compute capability.
        tpus: number of TPU devices.
        built_with_cuda: whether this build can use GPUs.
        cuda: the CUDA version that it was built for.
        computes: whether it has compiled and run something on the processor.
        seconds: how long the import took.
        problem: why there is nothing to tell, with the end of its output.
    """

    version: str = ""
    keras: str = ""
    backend: str = ""
    keras_of_tensorflow: str = ""
    gpus: tuple[str, ...] = ()
    tpus: int = 0
    built_with_cuda: bool = False
    cuda: str = ""
    computes: bool = False
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class TaskFacts:
    """A task of the cluster, seen from here.

    Attributes:
        name: such as "worker 1".
        address: "host:port".
        resolved: addresses of its host; empty when the name doesn't resolve.
        listens: whether something accepts connections there now.
    """

    name: str
    address: str
    resolved: tuple[str, ...] = ()
    listens: bool = False


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster that a job started here would be in.

    Attributes:
        source: which environment describes it, and why.
        problem: what is wrong with the description.
        task: this process's place; "local" without a cluster.
        address: this process's own address; "" without one.
        tasks: all tasks.
        port_problem: why the own port can't be used.
        settings_problem: what is wrong with the TFDIST_ variables, or their fit to the cluster.
        settings: the settings that the environment gives.
    """

    source: str = ""
    problem: str = ""
    task: str = "local"
    address: str = ""
    tasks: tuple[TaskFacts, ...] = ()
    port_problem: str = ""
    settings_problem: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Disk:
    """A folder that jobs write to.

    Attributes:
        purpose: such as "TMPDIR".
        path: the folder.
        free: bytes; -1 when unknown.
        problem: why nothing can be written there.
        clock_offset: seconds by which a new file's time is ahead of this machine's clock.
    """

    purpose: str
    path: str
    free: int = -1
    problem: str = ""
    clock_offset: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Limits of a process: open files, processes, locked memory; -1 is unlimited."""

    open_files: int = -1
    processes: int = -1
    locked_memory: int = -1


@dataclass(frozen=True)
class Facts:
    """Everything that is known.

    Attributes:
        time: seconds since 1970 by this machine's clock.
        python: Python's version.
        executable: the interpreter.
        packages: versions of the packages that matter, by name.
        unmet: requirements of tfdist that the installed packages don't meet.
        shadowed: modules that a file in the working directory hides.
        environment: variables that matter, without secrets.
        tpu_chips: chips that this machine's device files name.
        shared_memory: (size, free) of /dev/shm in bytes; None where there is none.
        unanswered: probes that did not end in time.
    """

    time: float = 0.0
    python: str = ""
    executable: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    host: HostFacts = field(default_factory=HostFacts)
    interfaces: tuple[Interface, ...] = ()
    infiniband: tuple[str, ...] = ()
    gpu_tool: GpuTool = field(default_factory=GpuTool)
    tpu_chips: int = 0
    tensorflow: TensorFlowFacts = field(default_factory=TensorFlowFacts)
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    disks: tuple[Disk, ...] = ()
    limits: Limits = field(default_factory=Limits)
    shared_memory: tuple[int, int] | None = None
    unanswered: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)
