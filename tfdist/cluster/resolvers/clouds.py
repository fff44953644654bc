"""Managed training: SageMaker, Cloud TPU, and the workers of Ray."""

from __future__ import annotations

import json
from typing import Any

from tfdist.cluster.resolvers.base import Found, Resolver, derived_port

__all__ = ["CloudTpu", "Ray", "SageMaker"]

_RESOURCES = "/opt/ml/input/config/resourceconfig.json"


class SageMaker(Resolver):
    """SM_HOSTS and SM_CURRENT_HOST of its training toolkit, or the file that they come from."""

    name = "SageMaker"

    def applies(self) -> bool:
        return self.has("SM_HOSTS") or self.has("TRAINING_JOB_ARN")

    def find(self) -> Found:
        hosts, own, where = self._resources()
        if not isinstance(hosts, list) or not all(isinstance(h, str) and h for h in hosts):
            raise self.error(
                f"{where} must hold a list of host names", received=repr(hosts), fix=_LEAVE
            )
        if own not in hosts:
            raise self.error(
                "This host must be one of the hosts",
                received=f"{own!r}, hosts {', '.join(hosts) or 'none'} ({where})",
                fix=_LEAVE,
            )
        if len(hosts) == 1:
            return self.alone("SageMaker job on one host: no cluster")
        rank = hosts.index(own)
        return self.tasks(hosts, rank, f"SageMaker, host {own} of {len(hosts)} ({where})")

    def _resources(self) -> tuple[Any, str, str]:
        """The hosts, this one, and where that was read."""
        where = "SM_HOSTS" if self.has("SM_HOSTS") else _RESOURCES
        text = self.text("SM_HOSTS") or self.place.read(_RESOURCES) or ""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise self.error(
                f"{where} is not JSON: {error}", received=text[:200], fix=_LEAVE
            ) from None
        if self.has("SM_HOSTS"):
            return content, self.text("SM_CURRENT_HOST"), where
        resources = content if isinstance(content, dict) else {}
        return resources.get("hosts"), str(resources.get("current_host", "")), where


_LEAVE = "Leave it to SageMaker to set it"


class CloudTpu(Resolver):
    """Hosts of a TPU slice: TensorFlow drives all of it from one process, so there is no cluster.

    The other hosts of a slice run TPU servers of their own; a script started there too would take
    the TPU from the first one.
    """

    name = "Cloud TPU"

    def applies(self) -> bool:
        return any(
            self.has(name)
            for name in (
                "TPU_WORKER_HOSTNAMES",
                "TPU_WORKER_ID",
                "TPU_NAME",
                "TPU_ACCELERATOR_TYPE",
            )
        )

    def find(self) -> Found:
        named = self.text("TPU_NAME", "TPU_ACCELERATOR_TYPE") or "slice"
        hosts = [h for h in self.text("TPU_WORKER_HOSTNAMES").split(",") if h.strip()]
        if len(hosts) <= 1:
            return self.alone(f"Cloud TPU {named}: one process drives it, no cluster")
        if self.number("TPU_WORKER_ID") > 0:
            raise self.error(
                f"One process drives a TPU slice of {len(hosts)} hosts, on its first host",
                received=f"TPU_WORKER_ID={self.text('TPU_WORKER_ID')}",
                fix="Start the script on worker 0 only (gcloud ... tpu-vm ssh --worker=0)",
            )
        return self.alone(
            f"Cloud TPU {named}: this process drives all {len(hosts)} hosts, no cluster"
        )


class Ray(Resolver):
    """Workers of Ray: its TensorflowTrainer sets TF_CONFIG, so what is left is what others set."""

    name = "Ray"

    def applies(self) -> bool:
        return self.has("RAY_RAYLET_PID") or self.has("RAY_JOB_ID")

    def find(self) -> Found:
        count = self.number("WORLD_SIZE", minimum=1) if self.has("WORLD_SIZE", "RANK") else 1
        if count == 1:
            return self.alone("Ray worker without TF_CONFIG: no cluster")
        rank = self.number("RANK")
        if not self.has("LOCAL_WORLD_SIZE") or self.number("LOCAL_WORLD_SIZE") != count:
            raise self.error(
                "Ray does not say on which hosts the other workers are",
                received=f"worker {rank} of {count}",
                fix="Use ray.train.tensorflow.TensorflowTrainer, which sets TF_CONFIG; or set "
                "TFDIST_HOSTS and TFDIST_RANK in each worker",
            )
        source = f"Ray, worker {rank} of {count} (RANK), all on one host"
        token = self.text("MASTER_PORT", "RAY_JOB_ID")
        return self.tasks(["127.0.0.1"] * count, rank, source, derived_port(token))

    def local_rank(self) -> int | None:
        if not self.applies() or not self.has("LOCAL_RANK"):
            return None
        return self.number("LOCAL_RANK")
