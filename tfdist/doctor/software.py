"""Packages, the working directory, and environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

__all__ = ["packages", "relevant", "shadowed", "unmet"]

_PACKAGES = (
    "tfdist",
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "keras",
    "tf-keras",
    "numpy",
    "protobuf",
    "grpcio",
    "tensorflow-datasets",
    "tensorboard",
    "nvidia-nccl-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cuda-runtime-cu12",
    "libtpu",
    "mpi4py",
    "horovod",
    "torch",
)

_PREFIXES = (
    "CUDA_",
    "GRPC_",
    "HOROVOD_",
    "JOBSET_",
    "KERAS_",
    "KMP_",
    "KUBERNETES_SERVICE_HOST",
    "LD_LIBRARY_PATH",
    "MKL_",
    "NCCL_",
    "NVIDIA_VISIBLE",
    "OMP_",
    "OMPI_COMM_",
    "PMI_",
    "SLURM_",
    "SM_CURRENT_HOST",
    "SM_HOSTS",
    "TFDIST_",
    "TFDS_",
    "TF_",
    "TMPDIR",
    "TPU_",
    "XLA_",
)
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_LONGEST = 2000  # characters of a value

# What a script's folder must not have a module of the same name as.
_OFTEN_SHADOWED = (
    "keras",
    "logging",
    "numpy",
    "queue",
    "random",
    "signal",
    "socket",
    "tensorboard",
    "tensorflow",
    "tensorflow_datasets",
    "tfdist",
    "types",
)


def packages() -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def unmet(requirements: Iterable[str] | None = None) -> list[str]:
    """What of tfdist's requirements is not installed, or in another version.

    Args:
        requirements: lines such as "keras>=3.15,<3.16; python_version >= '3.11'"; None means those
            that tfdist was installed with.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    if requirements is None:
        try:
            requirements = metadata.requires("tfdist") or []
        except metadata.PackageNotFoundError:
            return []  # It is imported from a folder, and nothing says what it asks for.
    found = []
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name} {requirement.specifier}".strip()
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found.append(f"{wanted} is wanted, and it is not installed")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{wanted} is wanted, {version} is installed")
    return found


def shadowed(folder: Path) -> list[str]:
    """The modules that a file or package in a folder hides from a script there."""
    found = []
    for name in _OFTEN_SHADOWED:
        file, package = folder / f"{name}.py", folder / name / "__init__.py"
        # tfdist's own checkout is no accident.
        if file.is_file() or (package.is_file() and not (folder / "pyproject.toml").is_file()):
            found.append(str(file if file.is_file() else package.parent))
    return found


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that concern training, with passwords and keys left out."""
    found = {}
    for name in sorted(environ):
        if name.startswith(_PREFIXES) or name.lower() in _PROXIES:
            value = re.sub(r"://[^/@\s]*@", "://***@", environ[name])
            found[name] = "***" if _SECRET.search(name) else value[:_LONGEST]
    return found
