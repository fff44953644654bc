"""Every manifest keeps its platform's schema, and starts tasks that find their cluster and settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import platforms
import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
from support.processes import child_environment, deadline

from tfdist.cli import main
from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.errors import ConfigError
from tfdist.manifests import (
    ComposeOptions,
    Job,
    KubernetesOptions,
    SlurmOptions,
    TpuOptions,
    render_compose,
    render_kubernetes,
    render_slurm,
    render_tpu,
)
from tfdist.manifests.tpu import is_slice_of_hosts

PROBE = Path(__file__).with_name("probe.py")
NASTY = (
    "--epochs=5",
    "two words",
    "it's",
    'a "b"',
    "$HOME ${HOME} $$ $(HOME) $(id) `id`",
    "back\\slash",
    "two\nlines",
    "tab\there",
    "# no comment",
    "; exit 1",
    "*",
    "",
    "ü",
    "- yes: &no *x !y",
)
SETTINGS = {
    "strategy": "multi_worker",
    "global_batch_size": 256,
    "deterministic": True,
    "seed": 1,
    "shuffle": False,
    "start_timeout": 12.5,
    "data_dir": '/data/it\'s $(HOME) $HOME/"x"',
    "verbose": "auto",
    "collective_timeout": None,
    "backup_freq": "epoch",
}


def job(**changes) -> Job:
    values = {
        "script": str(PROBE),
        "arguments": NASTY,
        "config": Config().replace(**SETTINGS),
        "workers": 3,
        "name": "train",
        "env": {"GREETING": "it's $HOME"},
        "python": sys.executable,
    }
    return Job(**{**values, **changes})


def servers(**changes) -> Job:
    config = Config().replace(**{**SETTINGS, "strategy": "parameter_server"})
    return job(config=config, workers=2, ps=2, **changes)


def check(started: list[platforms.Started], expected: Job, jobs: dict[str, list[str]]) -> None:
    """Each task runs the command with the settings, and finds its own place in the cluster."""
    tasks = [(role, index) for role, addresses in jobs.items() for index in range(len(addresses))]
    assert len(started) == len(tasks) == expected.tasks
    for process, (role, index) in zip(started, tasks, strict=True):
        assert process.command == list(expected.command)
        cluster = Cluster.resolve(process.environ)
        assert json.loads(cluster.to_tf_config()) == {
            "cluster": jobs,
            "task": {"type": role, "index": index},
        }
        assert cluster.address.rpartition(":")[0] in process.name
        config = Config.resolve(environ=process.environ)
        assert config.flat() == expected.config.flat()
        assert process.environ["GREETING"] == "it's $HOME"


# --- Kubernetes


def documents(text: str) -> list[dict]:
    found = list(yaml.safe_load_all(text))
    for document in found:
        if document["kind"] == "JobSet":
            # The models drop what they don't know, so that a slip would not come back.
            read = JobsetV1alpha2JobSet.from_dict(document)
            assert holds(json.loads(json.dumps(read.to_dict())), document)
            for replicated in document["spec"]["replicatedJobs"]:
                as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
                validate({**as_job, **replicated["template"]})
        else:
            validate(document)
    return found


def holds(read: Any, written: Any) -> bool:
    """Whether all that was written has been read; the rest are defaults."""
    if isinstance(written, dict):
        return all(name in read and holds(read[name], value) for name, value in written.items())
    if isinstance(written, list):
        return len(read) == len(written) and all(map(holds, read, written))
    return read == written


def validate(document: dict) -> None:
    for version in ("1.30", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


FULL = KubernetesOptions(
    image="registry.example/train:1",
    namespace="ml",
    gpus=8,
    cpu="16",
    memory="64Gi",
    claim="training-data:/data",
)


@pytest.mark.parametrize("options", [KubernetesOptions(image="train"), FULL])
def test_an_indexed_job(options):
    pods = platforms.kubernetes(documents(render_kubernetes(job(), options)))
    check(pods, job(), {"worker": [f"train-{n}.train:2222" for n in range(3)]})


def test_gpus_and_volumes_of_a_pod():
    (_, found) = documents(render_kubernetes(job(), FULL))
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "16", "memory": "64Gi"},
        "limits": {"nvidia.com/gpu": 8},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shm": "/dev/shm", "data": "/data"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)
    assert found["metadata"]["namespace"] == "ml"


def test_one_pod_is_a_cluster_of_one():
    pods = platforms.kubernetes(documents(render_kubernetes(job(workers=1), FULL)))
    check(pods, job(workers=1), {"worker": ["train-0.train:2222"]})


def test_a_jobset_with_parameter_servers():
    text = render_kubernetes(servers(), FULL)
    check(
        platforms.jobset(documents(text)),
        servers(),
        {
            "chief": ["train-chief-0-0.train:2222"],
            "worker": [f"train-worker-0-{n}.train:2222" for n in range(2)],
            "ps": [f"train-ps-0-{n}.train:2222" for n in range(2)],
        },
    )
    assert "&id" not in text


def test_a_jobset_of_workers():
    options = KubernetesOptions(image="train", jobset=True)
    pods = platforms.jobset(documents(render_kubernetes(job(), options)))
    check(pods, job(), {"worker": [f"train-worker-0-{n}.train:2222" for n in range(3)]})


# --- Compose


@pytest.mark.parametrize("gpus", [None, 2])
def test_compose(gpus):
    options = ComposeOptions(image="train", gpus=gpus, volumes=(".:/work",), workdir="/work")
    document = yaml.safe_load(render_compose(job(), options))
    check(
        platforms.compose(document),
        job(),
        {"worker": [f"worker-{n}:2222" for n in range(3)]},
    )
    devices = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for service in document["services"].values()
        if "deploy" in service
    ]
    assert devices == ([["0", "1"], ["2", "3"], ["4", "5"]] if gpus else [])


def test_compose_with_parameter_servers():
    document = yaml.safe_load(render_compose(servers(), ComposeOptions(image="train", gpus=1)))
    jobs = {
        "chief": ["chief-0:2222"],
        "worker": ["worker-0:2222", "worker-1:2222"],
        "ps": ["ps-0:2222", "ps-1:2222"],
    }
    check(platforms.compose(document), servers(), jobs)
    assert [name for name, s in document["services"].items() if "deploy" in s] == [
        "worker-0",
        "worker-1",
    ]


# --- Slurm

SRUN = """#!{python}
# Starts the tasks as Slurm would on two nodes, one after the other.
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words.pop(0)
counts = [int(count) for count in os.environ["FAKE_TASKS"].split(",")]
rank = 0
for node, count in enumerate(counts):
    here = ",".join(str(rank + local) for local in range(count))
    for local in range(count):
        own = dict(
            SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_PROCID=str(rank), SLURM_LOCALID=str(local),
            SLURM_NODEID=str(node), SLURM_GTIDS=here, SLURM_STEP_NUM_TASKS=str(sum(counts)),
            SLURM_STEP_NODELIST="n[1-2]", SLURM_STEP_TASKS_PER_NODE=os.environ["FAKE_TASKS"],
            SLURM_TASKS_PER_NODE=os.environ["FAKE_TASKS"],
        )
        subprocess.run(words, env={**os.environ, **own}, check=True)
        rank += 1
"""


def run(command: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env=child_environment({"PATH": path, **environ}),
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text.replace("{python}", sys.executable))
    path.chmod(0o755)


def bash(text: str, folder: Path, **environ: str) -> list[dict]:
    """Runs a script, and returns what each probe in it printed."""
    script = folder / "manifest.sh"
    script.write_text(text)
    assert run(["bash", "-n", str(script)], folder).returncode == 0
    done = run(["bash", str(script)], folder, **environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("with_servers", [False, True])
def test_an_sbatch_script(tmp_path, with_servers):
    expected = servers() if with_servers else job()
    options = SlurmOptions(
        nodes=2,
        cpus_per_task=4,
        gpus_per_task=1,
        partition="gpu",
        time="1-00:00:00",
        sbatch=("--constraint=[a100|h100]*2",),
        setup=("export SET_UP=yes",),
    )
    program(tmp_path, "srun", SRUN)
    counts = (3, 2) if with_servers else (2, 1)
    seen = bash(
        render_slurm(expected, options),
        tmp_path,
        FAKE_TASKS=",".join(map(str, counts)),
        TF_CONFIG='{"cluster": {"worker": ["another:1"]}, "task": {"type": "worker", "index": 0}}',
    )
    hosts = [f"n{node + 1}" for node, count in enumerate(counts) for _ in range(count)]
    addresses = [f"{host}:{11448 + rank}" for rank, host in enumerate(hosts)]
    jobs = {"worker": addresses}
    if with_servers:
        jobs = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    tasks = [(role, index) for role in jobs for index in range(len(jobs[role]))]
    assert [line["tf_config"] for line in seen] == [
        {"cluster": jobs, "task": {"type": role, "index": index}} for role, index in tasks
    ]
    for line in seen:
        assert line["arguments"] == list(NASTY)
        given = expected.config.given()
        assert line["settings"] == {name: item.value for name, item in given.items()}


def test_the_directives_of_slurm():
    text = render_slurm(job(workers=4), SlurmOptions(nodes=2, account="lab", mem="0"))
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH --job-name=train",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks=4",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --account=lab",
        "#SBATCH --mem=0",
    ]


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm")
def test_sbatch_takes_the_script(tmp_path):
    if subprocess.run(["sinfo"], capture_output=True, timeout=deadline(60)).returncode != 0:
        pytest.skip("no Slurm controller")
    path = tmp_path / "train.sbatch"
    path.write_text(render_slurm(job(workers=2), SlurmOptions(nodes=2, time="10")))
    done = subprocess.run(
        ["sbatch", "--test-only", str(path)], capture_output=True, text=True, timeout=deadline(60)
    )
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


# --- TPU

GCLOUD = """#!{python}
# Writes its arguments down; runs what is meant for the first host as its shell would.
import json, subprocess, sys
with open("gcloud.log", "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if "describe" in sys.argv:
    print("ACTIVE")
command = [word[10:] for word in sys.argv if word.startswith("--command=")]
if command and "--worker=0" in sys.argv:
    subprocess.run(["bash", "-c", command[0]], check=True)
"""


@pytest.mark.parametrize("kind", ["v5litepod-8", "v5litepod-16"])
def test_a_tpu_script(tmp_path, kind):
    config = Config().replace(**{**SETTINGS, "strategy": "tpu"})
    options = TpuOptions(
        accelerator_type=kind,
        zone="us-west4-a",
        runtime_version="tpu-vm-tf-2.19.0-pod-pjrt",
        project="my-project",
        spot=True,
        source="my code",
        setup="pip install 'tfdist>=0.1'",
    )
    (tmp_path / "train").mkdir()  # what is copied to the host
    program(tmp_path, "gcloud", GCLOUD)
    (line,) = bash(render_tpu(job(config=config, workers=1), options), tmp_path)
    assert line["tf_config"] == {}
    assert line["arguments"] == list(NASTY)
    assert line["settings"] == {name: item.value for name, item in config.given().items()}
    calls = [json.loads(text) for text in (tmp_path / "gcloud.log").read_text().splitlines()]
    assert [call[2:4] for call in calls] == [
        ["queued-resources", "create"],
        ["queued-resources", "describe"],
        ["tpu-vm", "scp"],
        ["tpu-vm", "ssh"],
        ["tpu-vm", "ssh"],
    ]
    assert all("--zone=us-west4-a" in call and "--project=my-project" in call for call in calls)
    assert f"--accelerator-type={kind}" in calls[0]
    assert "my code" in calls[2]
    assert "--command=cd train && pip install 'tfdist>=0.1'" in calls[3]
    assert ("TPU_LOAD_LIBRARY=0" in calls[4][-1]) == is_slice_of_hosts(kind)


# --- What is refused


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: job(name="Train_1"), "--name"),
        (lambda: job(name="x" * 41), "--name"),
        (lambda: job(workers=0), "--workers"),
        (lambda: job(ps=-1), "--ps"),
        (lambda: job(ps=1), "multi_worker"),
        (lambda: job(config=Config(strategy="parameter_server")), "--ps=1"),
        (lambda: job(config=Config(strategy="mirrored")), "stays in one process"),
        (lambda: job(env={"TF_CONFIG": "{}"}), "TF_CONFIG"),
        (lambda: job(env={"a b": "c"}), "a b"),
        (lambda: job(arguments=("a\0b",)), "null"),
        (lambda: render_slurm(job(), SlurmOptions(nodes=4)), "--nodes"),
        (lambda: render_slurm(job(), SlurmOptions(gpus_per_task=0)), "--gpus-per-task"),
        (lambda: render_slurm(job(), SlurmOptions(partition="a\nb")), "--partition"),
        (lambda: render_slurm(job(), SlurmOptions(sbatch=("x",))), "--sbatch"),
        (lambda: render_kubernetes(job(), KubernetesOptions(image=" ")), "--image"),
        (lambda: render_kubernetes(job(), KubernetesOptions(image="x", gpus=0)), "--gpus"),
        (lambda: render_kubernetes(job(), KubernetesOptions(image="x", claim="y")), "--claim"),
        (lambda: render_compose(job(), ComposeOptions(image="x", volumes=("y",))), "--volume"),
        (lambda: render_tpu(job(), TpuOptions("v4-8", "z", "r")), "--workers"),
        (lambda: render_tpu(job(workers=1), TpuOptions("v5e", "z", "r")), "v5litepod-8"),
        (
            lambda: render_tpu(job(workers=1), TpuOptions("v4-32", "z", "tpu-vm-tf-2.19.0-pjrt")),
            "-pod",
        ),
        (
            lambda: job(config=Config().replace(data_dir="/ends in a space ")).variables(),
            "data_dir",
        ),
    ],
)
def test_what_can_not_work_is_refused(make, told):
    with pytest.raises(ConfigError) as raised:
        make()
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("jobs/My_Train.v2.py", "my-train-v2"),
        ("2.py", "job-2"),
        ("__.py", "job"),
    ],
)
def test_the_name_follows_from_the_script(script, name):
    assert Job(script).name == name


# --- The command

COMMANDS = {
    "slurm": ["--nodes=2", "--workers=2"],
    "k8s": ["--workers=2", "--image=train"],
    "compose": ["--workers=2", "--image=train"],
    "tpu": ["--accelerator-type=v5litepod-8", "--zone=z", "--runtime-version=r"],
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_command_prints_or_writes_it(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("global_batch_size: 64\n")
    words = ["manifest", kind, *COMMANDS[kind], "--config=job.yaml"]
    assert main([*words, "--dry-run", "train.py", "--epochs=5"]) == 0
    printed = capsys.readouterr().out
    assert "TFDIST_GLOBAL_BATCH_SIZE" in printed
    assert "--epochs=5" in printed
    assert os.listdir() == ["job.yaml"]

    assert main([*words, "train.py", "--epochs=5"]) == 0
    told = capsys.readouterr()
    (path,) = set(os.listdir()) - {"job.yaml"}
    assert Path(path).read_text() == printed
    assert told.out == ""
    assert path in told.err
    assert main([*words, "train.py"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force", "train.py"]) == 0
    assert "--epochs=5" not in Path(path).read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["slurm"], "no script"),
        (["slurm", "--config=missing.yaml", "train.py"], "missing.yaml"),
        (["slurm", "--env=X", "train.py"], "NAME=VALUE"),
        (["slurm", "--output=no/such/folder", "train.py"], "no/such/folder"),
        (["compose", "--image=x", "--volume=y", "train.py"], "--volume"),
    ],
)
def test_a_mistake_is_told_on_one_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["manifest", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_missing_option_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["manifest", "k8s", "train.py"])
    assert ended.value.code == 2
    assert "--image" in capsys.readouterr().err
