"""Kubernetes: an Indexed Job with the headless Service that names its pods, or a JobSet.

```text
Job NAME, completionMode: Indexed     pods NAME-0, NAME-1, ...
Service NAME, clusterIP: None         their names: NAME-0.NAME, NAME-1.NAME, ...

JobSet NAME, a replicated job a role  pods NAME-worker-0-0, NAME-worker-0-1, ..., NAME-ps-0-0, ...
```

A JobSet makes its Service itself. It is needed where tasks have several roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdist.cluster.resolvers.base import DEFAULT_PORT
from tfdist.manifests.documents import dump
from tfdist.manifests.job import Job, check_positive, refuse

__all__ = ["KubernetesOptions", "render_kubernetes"]

_ANNOTATIONS = {
    "JOBSET_NAME": "jobset.sigs.k8s.io/jobset-name",
    "REPLICATED_JOB_NAME": "jobset.sigs.k8s.io/replicatedjob-name",
    "JOB_INDEX": "jobset.sigs.k8s.io/job-index",
}


@dataclass(frozen=True)
class KubernetesOptions:
    """What the pods are made of; None leaves it to the cluster's default.

    Attributes:
        image: the container image, which has Python, tfdist and the script.
        namespace: where it goes; None means that of kubectl.
        gpus: NVIDIA GPUs of each pod that trains.
        cpu, memory: requests of each pod, such as "4" and "16Gi".
        claim: a persistent volume claim and where to mount it, as NAME:PATH.
        jobset: write a JobSet also where a Job would do.
    """

    image: str
    namespace: str | None = None
    gpus: int | None = None
    cpu: str | None = None
    memory: str | None = None
    claim: str | None = None
    jobset: bool = False


def render_kubernetes(job: Job, options: KubernetesOptions) -> str:
    """Returns the YAML documents.

    Raises:
        ConfigError: an option can't be used.
    """
    check_positive(options.gpus, "--gpus")
    if not options.image.strip():
        raise refuse("The image is missing", repr(options.image), "--image", "Name an image")
    together = job.ps > 0 or options.jobset
    documents = (
        [_jobset(job, options)] if together else [_service(job, options), _job(job, options)]
    )
    return dump(documents)


def _metadata(job: Job, options: KubernetesOptions) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": job.name,
        "labels": {"app.kubernetes.io/name": job.name, "app.kubernetes.io/managed-by": "tfdist"},
    }
    return {**metadata, "namespace": options.namespace} if options.namespace else metadata


def _service(job: Job, options: KubernetesOptions) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, options),
        "spec": {
            "clusterIP": "None",
            # The Job controller gives this label to its pods.
            "selector": {"batch.kubernetes.io/job-name": job.name},
            # The workers look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "grpc", "port": DEFAULT_PORT}],
        },
    }


def _job(job: Job, options: KubernetesOptions) -> dict[str, Any]:
    env = [
        {"name": "TFDIST_SERVICE", "value": job.name},
        {"name": "TFDIST_WORLD_SIZE", "value": str(job.tasks)},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, options),
        "spec": _job_spec(job, options, "worker", job.tasks, env, subdomain=job.name),
    }


def _jobset(job: Job, options: KubernetesOptions) -> dict[str, Any]:
    env: list[dict[str, Any]] = [
        {"name": "TFDIST_SERVICE", "value": job.name},
        {"name": "TFDIST_ROLES", "value": ",".join(f"{r}={n}" for r, n in job.roles.items())},
    ]
    for name, annotation in _ANNOTATIONS.items():
        field = {"fieldPath": f"metadata.annotations['{annotation}']"}
        env.append({"name": name, "valueFrom": {"fieldRef": field}})
    training = [role for role in job.roles if role != "ps"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, options),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": job.name,
                "publishNotReadyAddresses": True,
            },
            # Parameter servers serve until somebody ends them.
            "successPolicy": {"operator": "All", "targetReplicatedJobs": training[:1]},
            "replicatedJobs": [
                {
                    "name": role,
                    "replicas": 1,
                    "template": {"spec": _job_spec(job, options, role, count, env)},
                }
                for role, count in job.roles.items()
            ],
        },
    }


def _job_spec(
    job: Job,
    options: KubernetesOptions,
    role: str,
    count: int,
    env: list[dict[str, Any]],
    subdomain: str | None = None,
) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [_container(job, options, role, env)],
    }
    if subdomain:
        pod["subdomain"] = subdomain
    pod["volumes"] = _volumes(options)
    return {
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        # One pod that starts anew can't join workers that have lost it: the job ends as a whole.
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": job.name}},
            "spec": {name: value for name, value in pod.items() if value},
        },
    }


def _container(
    job: Job, options: KubernetesOptions, role: str, env: list[dict[str, Any]]
) -> dict[str, Any]:
    settings = {name: v for name, v in job.variables().items() if name != "TFDIST_ROLES"}
    container: dict[str, Any] = {
        "name": role,
        "image": options.image,
        "command": [_literal(word) for word in job.command],
        "env": [*({"name": n, "value": _literal(v)} for n, v in settings.items()), *env],
        "ports": [{"name": "grpc", "containerPort": DEFAULT_PORT}],
    }
    requests = {"cpu": options.cpu, "memory": options.memory}
    resources: dict[str, Any] = {"requests": {name: v for name, v in requests.items() if v}}
    if options.gpus and role == "worker":
        resources["limits"] = {"nvidia.com/gpu": options.gpus}
    container["resources"] = {name: value for name, value in resources.items() if value}
    container["volumeMounts"] = [
        {
            "name": volume["name"],
            "mountPath": "/dev/shm" if volume["name"] == "shm" else _claim(options)[1],
        }
        for volume in _volumes(options)
    ]
    return {name: value for name, value in container.items() if value}


def _literal(text: str) -> str:
    """Kubernetes replaces $(NAME) in commands and values; a doubled dollar stays a dollar."""
    return text.replace("$", "$$")


def _volumes(options: KubernetesOptions) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    if options.gpus:  # NCCL needs more shared memory than the 64 MB of a container.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if options.claim:
        claim = {"claimName": _claim(options)[0]}
        volumes.append({"name": "data", "persistentVolumeClaim": claim})
    return volumes


def _claim(options: KubernetesOptions) -> tuple[str, str]:
    name, _, path = (options.claim or "").partition(":")
    if not name or not path.startswith("/"):
        raise refuse(
            "A volume claim is NAME:PATH with the path to mount it at",
            repr(options.claim),
            "--claim",
            "Such as --claim=training-data:/data",
        )
    return name, path
