"""What a platform makes of a manifest: the command and the environment of every task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Started:
    """A process that a platform would start."""

    name: str
    command: list[str]
    environ: dict[str, str]


def _expand(text: str, environ: dict[str, str]) -> str:
    """The kubelet's replacement of $(NAME), with $$ for a dollar."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environ.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", one, text)


def _container(
    pod: dict[str, Any], hostname: str, index: int, annotations: dict[str, str]
) -> Started:
    (container,) = pod["containers"]
    environ = {
        "HOSTNAME": hostname,
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "JOB_COMPLETION_INDEX": str(index),
    }
    for variable in container["env"]:
        if "value" in variable:
            value = _expand(variable["value"], environ)
        else:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            value = annotations[re.fullmatch(r"metadata\.annotations\['(.+)'\]", path)[1]]  # type: ignore[index]
        environ[variable["name"]] = value
    command = [_expand(word, environ) for word in container["command"]]
    return Started(f"{hostname}.{pod.get('subdomain', '')}", command, environ)


def kubernetes(documents: list[dict[str, Any]]) -> list[Started]:
    """The pods of a Job, under the names that its Service gives them."""
    service, job = documents
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    return [
        _container(pod, f"{job['metadata']['name']}-{index}", index, {})
        for index in range(spec["completions"])
    ]


def jobset(documents: list[dict[str, Any]]) -> list[Started]:
    """The pods of a JobSet, under the names that its network gives them."""
    (document,) = documents
    name = document["metadata"]["name"]
    network = document["spec"]["network"]
    assert network["enableDNSHostnames"]
    started = []
    for replicated in document["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        assert replicated["replicas"] == 1
        annotations = {
            "jobset.sigs.k8s.io/jobset-name": name,
            "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
            "jobset.sigs.k8s.io/job-index": "0",
        }
        pod = {**spec["template"]["spec"], "subdomain": network["subdomain"]}
        for index in range(spec["completions"]):
            host = f"{name}-{replicated['name']}-0-{index}"
            started.append(_container(pod, host, index, annotations))
    return started


def compose(document: dict[str, Any]) -> list[Started]:
    """The containers of a compose file, which finds $NAME in every value."""

    def literal(text: str) -> str:
        assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text), f"compose would replace in {text!r}"
        return text.replace("$$", "$")

    return [
        Started(
            name,
            [literal(word) for word in service["command"]],
            {key: literal(value) for key, value in service["environment"].items()},
        )
        for name, service in document["services"].items()
    ]
