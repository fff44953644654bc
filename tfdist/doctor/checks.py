"""The table of checks: what is judged, in the order of the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.doctor import checks_cluster, checks_machine, checks_software
from tfdist.doctor.facts import Facts
from tfdist.doctor.findings import Check, Finding

__all__ = ["CHECKS", "diagnose"]

CHECKS: tuple[Check, ...] = (
    Check("python", checks_software.python),
    Check("requirements", checks_software.requirements),
    Check("shadowed-modules", checks_software.shadowed_modules),
    Check("processor", checks_machine.processor),
    Check("keras-backend", checks_software.keras_backend),
    Check("tensorflow", checks_software.tensorflow),
    Check("legacy-keras", checks_software.legacy_keras),
    Check("settings", checks_cluster.settings),
    Check("nvidia-smi", checks_machine.nvidia_smi),
    Check("gpus-hidden", checks_machine.gpus_hidden),
    Check("gpus-unused", checks_machine.gpus_unused),
    Check("tpu", checks_machine.tpu),
    Check("gpus-mixed", checks_machine.gpus_mixed),
    Check("gpus-occupied", checks_machine.gpus_occupied),
    Check("precision", checks_machine.precision),
    Check("cores", checks_machine.cores),
    Check("threads", checks_machine.threads),
    Check("memory", checks_machine.memory),
    Check("shared-memory", checks_machine.shared_memory),
    Check("open-files", checks_machine.open_files),
    Check("locked-memory", checks_machine.locked_memory),
    Check("disk-space", checks_machine.disk_space),
    Check("clock", checks_machine.clock),
    Check("host-name", checks_cluster.host_name),
    Check("cluster", checks_cluster.description),
    Check("slurm-without-srun", checks_cluster.slurm_without_srun),
    Check("host-names", checks_cluster.host_names),
    Check("own-address", checks_cluster.own_address),
    Check("loopback", checks_cluster.loopback),
    Check("port", checks_cluster.port),
    Check("nccl-interface", checks_cluster.nccl_interface),
    Check("nccl-switches", checks_cluster.nccl_switches),
    Check("unanswered", checks_machine.unanswered),
)


def diagnose(facts: Facts, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Applies the checks.

    Args:
        facts: the snapshot.
        checks: the table.

    Returns:
        What is wrong, the errors before the warnings; empty when all is well.
    """
    findings = []
    for check in checks:
        finding = check.function(facts)
        if finding is not None:
            findings.append(dataclasses.replace(finding, check=check.name))
    return sorted(findings, key=lambda finding: finding.severity != "error")
