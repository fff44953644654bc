"""Checks of GPUs, cores, memory, limits and folders."""

from __future__ import annotations

from tfdist.config.sizes import format_bytes
from tfdist.doctor.facts import Facts, Gpu
from tfdist.doctor.findings import Finding

__all__ = [
    "clock",
    "cores",
    "disk_space",
    "gpus_hidden",
    "gpus_mixed",
    "gpus_occupied",
    "gpus_unused",
    "locked_memory",
    "memory",
    "nvidia_smi",
    "open_files",
    "precision",
    "processor",
    "shared_memory",
    "suited_precision",
    "threads",
    "tpu",
    "unanswered",
    "visible_gpus",
]

_GIB = 2**30
_LEAST_MEMORY = 2 * _GIB
_LEAST_DISK = _GIB
_LEAST_FILES = 1024
_FILES_OF_A_TASK = 16  # sockets of its channels, at both ends
_LEAST_SHARED = 64 * 2**20
_SHARED_OF_GPUS = _GIB
_CLOCK_TOLERANCE = 5.0
_BFLOAT16_CAPABILITY = (8, 0)  # Ampere
_FLOAT16_CAPABILITY = (7, 0)  # Volta


def processor(facts: Facts) -> Finding | None:
    """A processor without AVX, on which TensorFlow's wheels crash."""
    if "x86_64" not in facts.host.system or not facts.host.cpu or "avx" in facts.host.cpu_flags:
        return None
    return Finding(
        f"TensorFlow's wheels need a processor with AVX, which {facts.host.cpu} has not, or the "
        "virtual machine hides",
        "Give the virtual machine the host's processor type, or build TensorFlow for this one",
    )


def nvidia_smi(facts: Facts) -> Finding | None:
    """A driver that does not answer."""
    tool = facts.gpu_tool
    if tool.problem:
        return Finding(
            f"{tool.path} does not tell the GPUs: {tool.problem}",
            "Check the NVIDIA driver: run nvidia-smi by hand, and look into dmesg; in a container, "
            "start it with --gpus=all",
        )
    if not tool.path and tool.device_files:
        return Finding(
            f"There are {tool.device_files} GPUs under /dev, and no nvidia-smi on the PATH",
            "Add the folder of nvidia-smi to the PATH, or install the driver's tools",
            "warning",
        )
    return None


def visible_gpus(facts: Facts) -> tuple[list[Gpu], list[str]]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, and the entries that name none."""
    gpus = list(facts.gpu_tool.gpus)
    listed = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return gpus, []
    visible: list[Gpu] = []
    for entry in (word.strip() for word in listed.split(",")):
        match = [
            gpu
            for gpu in gpus
            if entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry))
        ]
        if not match:
            # CUDA ignores this entry and all after it; an empty list and -1 are meant to hide all.
            return visible, [] if entry in ("", "-1", "NoDevFiles") else [entry]
        visible += match
    return visible, []


def gpus_hidden(facts: Facts) -> Finding | None:
    """CUDA_VISIBLE_DEVICES that hides GPUs outside a launcher that shares them out."""
    if not facts.gpu_tool.gpus:
        return None
    visible, wrong = visible_gpus(facts)
    listed = facts.environment.get("CUDA_VISIBLE_DEVICES", "")
    if wrong:
        return Finding(
            f"CUDA_VISIBLE_DEVICES={listed} names a GPU that is not here: {wrong[0]}. CUDA ignores it "
            f"and all after it: {len(visible)} of {len(facts.gpu_tool.gpus)} GPUs are left",
            "Name GPUs from 0 to " + str(len(facts.gpu_tool.gpus) - 1) + ", or unset it",
        )
    shared_out = any(name in facts.environment for name in ("SLURM_STEP_ID", "TFDIST_LOCAL_RANK"))
    if len(visible) < len(facts.gpu_tool.gpus) and not shared_out:
        return Finding(
            f"CUDA_VISIBLE_DEVICES={listed!r} hides {len(facts.gpu_tool.gpus) - len(visible)} of the "
            f"{len(facts.gpu_tool.gpus)} GPUs",
            "Unset it, and choose GPUs by tfdist's setting devices=gpu:0,1",
            "warning",
        )
    return None


def gpus_unused(facts: Facts) -> Finding | None:
    """GPUs that are there and visible, and that TensorFlow does not see."""
    visible, _ = visible_gpus(facts)
    found = facts.tensorflow
    if not visible or found.problem or len(found.gpus) >= len(visible):
        return None
    if not found.built_with_cuda:
        return Finding(
            f"This TensorFlow is built without CUDA: it can't use the {len(visible)} GPUs",
            "pip install 'tensorflow[and-cuda]' in the place of tensorflow-cpu",
        )
    return Finding(
        f"TensorFlow sees {len(found.gpus)} of the {len(visible)} visible GPUs: its CUDA libraries "
        f"(CUDA {found.cuda or '?'}) don't load, or the driver {facts.gpu_tool.driver or '?'} is too old",
        "pip install 'tensorflow[and-cuda]', unset LD_LIBRARY_PATH, and update the driver; "
        "TF_CPP_MIN_LOG_LEVEL=0 python -c 'import tensorflow as tf; tf.config.list_physical_devices()' "
        "names the library",
    )


def tpu(facts: Facts) -> Finding | None:
    """The strategy `tpu` on a machine without one."""
    name = facts.environment.get("TPU_NAME", "").strip()
    if facts.cluster.settings.get("strategy") != "tpu" or name not in ("", "local"):
        return None
    if facts.tpu_chips or facts.tensorflow.tpus:
        return None
    return Finding(
        f"TFDIST_STRATEGY=tpu, and this machine has no TPU (TPU_NAME={name or 'unset'})",
        "Run it on a TPU VM, set TPU_NAME to the TPU's name or address, or use another strategy",
    )


def gpus_mixed(facts: Facts) -> Finding | None:
    """GPUs of different kinds, of which the slowest sets the pace."""
    names = sorted({gpu.name for gpu in visible_gpus(facts)[0]})
    if len(names) < 2:
        return None
    return Finding(
        f"The GPUs are of different kinds: {', '.join(names)}. In each step the fast ones wait for the "
        "slow ones, and the smallest memory limits the batch",
        "Use those of one kind: devices=gpu:I,J",
        "warning",
    )


def gpus_occupied(facts: Facts) -> Finding | None:
    """GPUs whose memory another program holds."""
    busy = [gpu for gpu in visible_gpus(facts)[0] if gpu.memory_used * 4 > gpu.memory > 0]
    if not busy:
        return None
    listed = ", ".join(f"GPU {g.index}: {g.memory_used} of {g.memory} MiB" for g in busy)
    return Finding(
        f"Another program holds memory of the GPUs ({listed})",
        "End it (nvidia-smi shows its process id), or use other GPUs: devices=gpu:I,J",
        "warning",
    )


def suited_precision(facts: Facts) -> dict[str, str]:
    """How well each number format suits this hardware, by its name."""
    gpus = visible_gpus(facts)[0]
    capabilities = [_capability(gpu) for gpu in gpus if _capability(gpu)]
    if facts.tensorflow.tpus:
        return {
            "mixed_bfloat16": "suited: a TPU multiplies in bfloat16",
            "mixed_float16": "not suited: a TPU has no float16 units; use mixed_bfloat16",
        }
    if capabilities:
        least = min(capabilities)
        name = ".".join(map(str, least))
        return {
            "mixed_bfloat16": f"suited: compute capability {name}"
            if least >= _BFLOAT16_CAPABILITY
            else f"not suited: it needs compute capability 8.0 (Ampere), there is {name}",
            "mixed_float16": f"suited: compute capability {name}; needs loss scaling, which Keras does"
            if least >= _FLOAT16_CAPABILITY
            else f"not suited: tensor cores need compute capability 7.0 (Volta), there is {name}",
        }
    has_units = {"avx512_bf16", "amx_bf16", "bf16"} & set(facts.host.cpu_flags)
    return {
        "mixed_bfloat16": f"suited: the processor has {', '.join(sorted(has_units))}"
        if has_units
        else "right numbers, but not faster: the processor has no bfloat16 units",
        "mixed_float16": "not suited: processors compute it in float32, and convert; use "
        "mixed_bfloat16 or float32",
    }


def precision(facts: Facts) -> Finding | None:
    """A number format in the settings that this hardware is slow in."""
    wanted = str(facts.cluster.settings.get("precision", ""))
    verdict = suited_precision(facts).get(wanted, "")
    if not verdict.startswith("not suited"):
        return None
    return Finding(
        f"TFDIST_PRECISION={wanted} is {verdict}",
        "Set another precision, or leave it out",
        "warning",
    )


def _capability(gpu: Gpu) -> tuple[int, ...]:
    parts = gpu.compute_capability.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def cores(facts: Facts) -> Finding | None:
    """A process that a scheduler has bound to one of many cores."""
    host = facts.host
    if host.allowed_cores > 1 or host.cores < 4 or "SLURM_JOB_ID" not in facts.environment:
        return None
    return Finding(
        f"This process may use {host.allowed_cores} of the node's {host.cores} cores",
        "Ask for more: srun --cpus-per-task=N (an sbatch option does not reach srun since Slurm "
        "22.05; SRUN_CPUS_PER_TASK does)",
        "warning",
    )


def threads(facts: Facts) -> Finding | None:
    """Numbers of threads that can't be read, or are more than the cores."""
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        text = facts.environment.get(name, "").strip()
        if not text:
            continue
        first = text.split(",")[0]
        if not (first.isascii() and first.isdecimal()) or int(first) < 1:
            return Finding(
                f"{name}={text} is no number of threads",
                f"Unset {name}; tfdist divides the cores among the workers of a host",
            )
        if int(first) > facts.host.allowed_cores:
            return Finding(
                f"{name}={text}, and this process may use {facts.host.allowed_cores} cores: the "
                "threads wait for each other",
                f"Unset {name}; tfdist divides the cores among the workers of a host",
                "warning",
            )
    return None


def memory(facts: Facts) -> Finding | None:
    """Hardly any memory."""
    if not facts.host.memory or facts.host.memory_free >= _LEAST_MEMORY:
        return None
    return Finding(
        f"{format_bytes(facts.host.memory_free)} of memory are free, of "
        f"{format_bytes(facts.host.memory)}; a process with TensorFlow takes about 1 GB",
        "End other programs, or raise the container's limit (--memory, or the scheduler's --mem)",
        "warning",
    )


def shared_memory(facts: Facts) -> Finding | None:
    """A small /dev/shm, over which NCCL and MPI connect processes of one machine."""
    if facts.shared_memory is None:
        return None
    size, free = facts.shared_memory
    least = _SHARED_OF_GPUS if len(visible_gpus(facts)[0]) > 1 else _LEAST_SHARED
    what = f"/dev/shm has {format_bytes(free)} free of {format_bytes(size)}"
    if size > least and free > _LEAST_SHARED:
        return None
    return Finding(
        f"{what}: NCCL and MPI exchange gradients through it, and die of a bus error (exit code 135) "
        "when it is full",
        "Start the container with --shm-size=8g (Kubernetes: an emptyDir with medium: Memory at "
        "/dev/shm), and remove what ended programs have left there",
        "warning",
    )


def open_files(facts: Facts) -> Finding | None:
    """A low limit of open files."""
    allowed = facts.limits.open_files
    needed = max(_LEAST_FILES, 512 + _FILES_OF_A_TASK * len(facts.cluster.tasks))
    if allowed < 0 or allowed >= needed:
        return None
    return Finding(
        f"A process may have {allowed} files and connections open; {needed} are advisable for "
        f"{max(1, len(facts.cluster.tasks))} tasks",
        f"ulimit -n {max(needed, 65536)} before the start, or LimitNOFILE, or --ulimit nofile of a "
        "container",
        "warning",
    )


def locked_memory(facts: Facts) -> Finding | None:
    """A limit of locked memory that InfiniBand can't work with."""
    allowed = facts.limits.locked_memory
    if not facts.infiniband or allowed < 0 or allowed >= _GIB:
        return None
    return Finding(
        f"InfiniBand ({', '.join(facts.infiniband)}) needs locked memory, of which a process may have "
        f"{format_bytes(allowed)}: NCCL fails with `ibv_reg_mr failed`",
        "ulimit -l unlimited; --ulimit memlock=-1 of a container",
        "warning",
    )


def disk_space(facts: Facts) -> Finding | None:
    """Folders that can't be written, or are nearly full."""
    for disk in facts.disks:
        where = f"{disk.purpose} ({disk.path})"
        if disk.problem:
            return Finding(
                f"{where}: {disk.problem}",
                f"Free or remount it, or set {_variable(disk.purpose)} to another folder",
            )
        if 0 <= disk.free < _LEAST_DISK:
            return Finding(
                f"{where} has {format_bytes(disk.free)} left",
                f"Free some, or set {_variable(disk.purpose)} to a folder with room",
                "warning",
            )
    return None


def _variable(purpose: str) -> str:
    return purpose if purpose.isupper() else "the script's paths"


def clock(facts: Facts) -> Finding | None:
    """A clock that is behind the software, or another than the file server's."""
    for disk in facts.disks:
        if abs(disk.clock_offset) > _CLOCK_TOLERANCE:
            return Finding(
                f"The files of {disk.purpose} ({disk.path}) are dated {disk.clock_offset:+.0f} s "
                "against this machine's clock: backups look older or newer than they are",
                "Synchronise the clocks of this machine and the file server (chronyd, ntpd)",
                "warning",
            )
    if 0 < facts.time < _RELEASED:
        return Finding(
            "This machine's clock is before the release of this software: certificates and downloads "
            "will be refused",
            "Set the clock (chronyd, ntpd)",
        )
    return None


_RELEASED = 1_767_225_600  # 2026-01-01


def unanswered(facts: Facts) -> Finding | None:
    """Questions that the machine did not answer."""
    if not facts.unanswered:
        return None
    return Finding(
        f"Could not be found out: {'; '.join(facts.unanswered)}",
        "Look at what the machine does there: a file system or a name server that hangs",
        "warning",
    )
