"""Device plans as pure data, their application to a stand-in for tf.config, and the real one."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from support.processes import child_environment, deadline

from tfdist import devices
from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.config.device_spec import DeviceSpec
from tfdist.devices import Devices, Plan
from tfdist.errors import ConfigError


class FakeConfig:
    """What tfdist uses of `tf.config`, with as many GPUs as a test needs."""

    def __init__(self, gpus: int = 0, initialized: bool = False):
        self.physical = {
            "CPU": [types.SimpleNamespace(name="/physical_device:CPU:0")],
            "GPU": [types.SimpleNamespace(name=f"/physical_device:GPU:{n}") for n in range(gpus)],
        }
        self.visible = dict(self.physical)
        self.initialized = initialized
        self.logical: list | None = None
        self.growing: list[str] = []
        self.limited: set[str] = set()
        self.limits: dict[str, list] = {}
        self.threads: dict[str, int] = {}
        self.threading = types.SimpleNamespace(
            get_intra_op_parallelism_threads=lambda: self.threads.get("intra", 0),
            get_inter_op_parallelism_threads=lambda: self.threads.get("inter", 0),
            set_intra_op_parallelism_threads=lambda number: self.thread("intra", number),
            set_inter_op_parallelism_threads=lambda number: self.thread("inter", number),
        )
        self.experimental = types.SimpleNamespace(
            get_memory_growth=lambda gpu: gpu.name in self.growing, set_memory_growth=self.grow
        )

    def LogicalDeviceConfiguration(self, memory_limit: int | None = None) -> object:
        return types.SimpleNamespace(memory_limit=memory_limit)

    def list_physical_devices(self, kind: str) -> list:
        return self.physical[kind]

    def get_visible_devices(self, kind: str) -> list:
        return self.visible[kind]

    def set_visible_devices(self, chosen: list, kind: str) -> None:
        self.change()
        self.visible[kind] = chosen

    def get_logical_device_configuration(self, device: types.SimpleNamespace) -> list | None:
        return self.limits.get(device.name) if "GPU" in device.name else self.logical

    def set_logical_device_configuration(
        self, device: types.SimpleNamespace, configurations: list
    ) -> None:
        self.change()
        if "GPU" in device.name:
            self.limits[device.name] = configurations
        else:
            self.logical = configurations

    def thread(self, kind: str, number: int) -> None:
        self.change()
        self.threads[kind] = number

    def grow(self, gpu: types.SimpleNamespace, value: bool) -> None:
        if gpu.name in self.limited:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        self.change()
        assert value
        self.growing.append(gpu.name)

    def change(self) -> None:
        if self.initialized:
            raise RuntimeError("can't be modified after being initialized")


@pytest.fixture
def fake(monkeypatch):
    """Installs a FakeConfig; returns the function that makes it."""
    monkeypatch.setattr(devices, "_configured", None)

    def install(gpus: int = 0, initialized: bool = False) -> FakeConfig:
        config = FakeConfig(gpus, initialized)
        monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
        return config

    return install


def configure(text: str, cluster: Cluster | None = None, rank: int | None = None, **environ: str):
    return devices.configure(Config(devices=text), cluster or Cluster.local(), rank, environ)


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("auto", 0, Plan("CPU")),
        ("auto", 2, Plan("GPU")),
        ("cpu", 0, Plan("CPU")),
        ("cpu", 2, Plan("CPU", gpus=())),
        ("cpu:4", 0, Plan("CPU", cpus=4)),
        ("cpu:4", 1, Plan("CPU", gpus=(), cpus=4)),
        ("gpu", 2, Plan("GPU")),
        ("gpu:1", 2, Plan("GPU", gpus=(1,))),
        ("gpu:1,0", 2, Plan("GPU", gpus=(1, 0))),
    ],
)
def test_plans(text, gpus, expected):
    assert devices.plan(DeviceSpec.parse(text), gpus=gpus) == expected


@pytest.mark.parametrize(
    ("gpus", "workers", "expected"),
    [(4, 2, [(0, 1), (2, 3)]), (2, 2, [(0,), (1,)]), (5, 2, [(0, 1), (2, 3)])],
)
def test_workers_of_a_host_share_out_its_gpus(gpus, workers, expected):
    for text in ("auto", "gpu"):
        plans = [
            devices.plan(DeviceSpec.parse(text), gpus=gpus, local_rank=rank, local_workers=workers)
            for rank in range(workers)
        ]
        assert [plan.gpus for plan in plans] == expected


def test_more_workers_than_gpus_share_them_with_a_warning(caplog):
    plans = [
        devices.plan(DeviceSpec("auto"), gpus=2, local_rank=rank, local_workers=3)
        for rank in range(3)
    ]
    assert [plan.gpus for plan in plans] == [(0,), (1,), (0,)]
    assert "3 workers of this host share 2 GPUs" in caplog.text


def test_named_gpus_are_not_shared_out():
    spec = DeviceSpec.parse("gpu:3")
    assert devices.plan(spec, gpus=4, local_rank=0, local_workers=2).gpus == (3,)


@pytest.mark.parametrize(
    ("text", "gpus", "match"),
    [
        ("gpu", 0, r"No GPU here.*This process sees: cpu\."),
        ("gpu:0", 0, r"don't exist here: gpu:0.*sees: cpu\."),
        ("gpu:1,7", 2, r"don't exist here: gpu:7\..*sees: gpu:0, gpu:1, cpu\."),
    ],
)
def test_a_missing_device_is_named_with_those_that_exist(text, gpus, match):
    with pytest.raises(ConfigError, match=match):
        devices.plan(DeviceSpec.parse(text), gpus=gpus)


def test_workers_on_this_host():
    jobs = {"chief": ("A:1",), "worker": ("a:2", "b:1"), "ps": ("a:3",)}
    assert devices.workers_on_this_host(Cluster(jobs, "worker", 0)) == 1, "a chief of ps has none"
    assert devices.workers_on_this_host(Cluster(jobs, "worker", 1)) == 1
    del jobs["ps"]
    assert devices.workers_on_this_host(Cluster(jobs, "worker", 0)) == 2
    assert devices.workers_on_this_host(Cluster.local()) == 1


def test_the_local_rank():
    assert devices.local_rank_from({}) is None
    assert devices.local_rank_from({"TFDIST_LOCAL_RANK": "2"}) == 2
    mpi = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
    assert devices.local_rank_from({**mpi, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}) == 1
    assert devices.local_rank_from(mpi) is None
    with pytest.raises(ConfigError, match="TFDIST_LOCAL_RANK"):
        devices.local_rank_from({"TFDIST_LOCAL_RANK": "-1"})


def test_gpus_get_memory_growth(fake):
    config = fake(gpus=2)
    assert configure("auto") == Devices("GPU", 2)
    assert len(config.growing) == 2


def test_a_memory_limit_set_before_is_kept(fake):
    config = fake(gpus=2)
    config.limited = {"/physical_device:GPU:0"}
    assert configure("gpu") == Devices("GPU", 2)
    assert config.growing == ["/physical_device:GPU:1"]


def test_a_memory_limit_of_the_settings(fake):
    limited = Config(devices="gpu:1", gpu_memory_limit="2GiB")
    config = fake(gpus=2)
    assert devices.configure(limited, Cluster.local(), None, {}) == Devices("GPU", 1)
    ((name, [limit]),) = config.limits.items()
    assert (name[-1], limit.memory_limit) == ("1", 2048)
    assert config.growing == [], "TensorFlow allows one of the two"
    config.initialized = True
    assert devices.configure(limited, Cluster.local(), None, {}) == Devices("GPU", 1)
    devices._configured = None
    assert devices.configure(limited, Cluster.local(), None, {}) == Devices("GPU", 1)
    devices._configured = None
    with pytest.raises(ConfigError, match=r"gpu:1 with 1\.07 GB each"):
        devices.configure(limited.replace(gpu_memory_limit="1GiB"), Cluster.local(), None, {})


def test_a_memory_limit_without_gpus_is_said_to_do_nothing(fake, caplog):
    caplog.set_level("INFO", "tfdist")
    fake()
    settings = Config(gpu_memory_limit=2**30)
    assert devices.configure(settings, Cluster.local(), None, {}) == Devices("CPU", 1)
    assert "no effect" in caplog.text


def test_hidden_gpus_and_logical_cpus(fake):
    config = fake(gpus=2)
    assert configure("cpu:3") == Devices("CPU", 3)
    assert config.visible["GPU"] == []
    assert config.growing == []


def test_chosen_gpus(fake):
    config = fake(gpus=3)
    assert configure("gpu:2,0") == Devices("GPU", 2)
    assert [gpu.name[-1] for gpu in config.visible["GPU"]] == ["2", "0"]


def test_the_local_rank_counts_unless_somebody_has_shared_out_the_gpus(fake):
    cluster = Cluster({"worker": ("a:1", "a:2")}, "worker", 1)
    config = fake(gpus=4)
    assert configure("auto", cluster, 1) == Devices("GPU", 2)
    assert [gpu.name[-1] for gpu in config.visible["GPU"]] == ["2", "3"]


def test_workers_of_a_host_share_out_its_cores(fake, caplog):
    caplog.set_level("INFO", "tfdist")
    cluster = Cluster({"worker": ("a:1", "a:2")}, "worker", 1)
    config = fake()
    configure("auto", cluster)
    each = max(1, devices.cores.machine.detect({}).cores // 2)
    assert config.threads == {"intra": each, "inter": max(2, each)}
    assert f"threads: {each} intra-op" in caplog.text


def test_threads_of_the_environment_are_kept(fake, caplog):
    caplog.set_level("INFO", "tfdist")
    cluster = Cluster({"worker": ("a:1", "a:2")}, "worker", 1)
    config = fake()
    configure("auto", cluster, TF_NUM_INTRAOP_THREADS="3", TF_NUM_INTEROP_THREADS="5")
    assert config.threads == {}
    assert "threads: TF_NUM_INTRAOP_THREADS=3, TF_NUM_INTEROP_THREADS=5" in caplog.text


def test_threads_that_have_started_are_left(fake, caplog):
    caplog.set_level("INFO", "tfdist")
    fake(initialized=True)
    configure("auto", Cluster({"worker": ("a:1", "a:2")}, "worker", 1))
    assert "threads: intra-op as TensorFlow has started" in caplog.text


def test_visible_gpus_of_the_environment_are_kept(fake):
    cluster = Cluster({"worker": ("a:1", "a:2")}, "worker", 1)
    fake(gpus=2)
    assert configure("auto", cluster, 1, CUDA_VISIBLE_DEVICES="2,3") == Devices("GPU", 2)


def test_slurm_shows_all_gpus_of_a_node_to_each_of_its_tasks(fake):
    cluster = Cluster({"worker": ("a:1", "a:2")}, "worker", 1)
    config = fake(gpus=2)
    step = {
        "SLURM_JOB_ID": "6",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_GTIDS": "0,1",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    assert configure("auto", cluster, 1, CUDA_VISIBLE_DEVICES="0,1", **step) == Devices("GPU", 1)
    assert [gpu.name[-1] for gpu in config.visible["GPU"]] == ["1"]


def test_the_same_again_is_a_no_op_even_after_initialisation(fake):
    config = fake(gpus=2)
    assert configure("gpu:1") == Devices("GPU", 1)
    config.initialized = True
    assert configure("gpu:1") == Devices("GPU", 1)


def test_other_devices_need_a_new_process(fake):
    fake()
    configure("cpu:2")
    with pytest.raises(ConfigError, match=r"set to cpu:2 by an earlier.*cpu:4.*Restart the proc"):
        configure("cpu:4")


@pytest.mark.parametrize(
    ("text", "gpus", "match"),
    [
        ("cpu:2", 0, r"already initialised.*logical CPU devices: 1.*devices=cpu:2.*Restart"),
        ("cpu", 1, r"already initialised.*visible GPUs: /physical_device:GPU:0.*Restart"),
        ("gpu:1", 2, r"already initialised.*devices=gpu:1.*Restart"),
    ],
)
def test_after_initialisation_a_change_is_refused(fake, text, gpus, match):
    fake(gpus, initialized=True)
    with pytest.raises(ConfigError, match=match):
        configure(text)


def test_after_initialisation_what_is_right_already_is_fine(fake, caplog):
    fake(initialized=True)
    assert configure("auto") == Devices("CPU", 1)
    assert configure("cpu") == Devices("CPU", 1)
    fake(1, initialized=True)
    devices._configured = None
    assert configure("auto") == Devices("GPU", 1)
    assert "can't grow on demand" in caplog.text


REAL = """
import os
import tensorflow as tf
from tensorflow.python.eager import context
from tfdist import devices, precision
from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.errors import ConfigError

def configure(text):
    try:
        return devices.configure(Config(devices=text), Cluster.local()).count
    except ConfigError as error:
        return str(error)

assert configure("cpu:3") == 3
assert configure("cpu:3") == 3
precision.apply("mixed_bfloat16")
assert not context.context()._initialized, "configuring must not start TensorFlow"
assert len(tf.config.list_logical_devices("CPU")) == 3
assert configure("cpu:3") == 3, "a no-op after initialisation, too"
assert "set to cpu:3 by an earlier call" in configure("cpu:2")
devices._configured = None
assert configure("auto") == 3, "what the script itself has set holds"
devices._configured = None
assert "logical CPU devices: 3" in configure("cpu:2")
import keras
for name in ("float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "float32"):
    precision.apply(name)
    assert precision.current() == name
    assert keras.config.floatx() == ("float64" if name == "float64" else "float32"), name
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    assert layer.compute_dtype == name.removeprefix("mixed_"), name
    expected = "float32" if name.startswith("mixed_") else name
    assert layer.kernel.dtype == expected, name
from tfdist.serving.server import session_config
jobs = {"chief": ("a:1",), "worker": ("a:2",), "ps": ("a:3",)}
proto = session_config(
    Cluster(jobs, "worker", 0), devices.Plan("GPU", gpus=(1, 0), gpu_memory=2**31)
)
limits = [list(item.memory_limit_mb) for item in proto.gpu_options.experimental.virtual_devices]
assert limits == [[2048], [2048]], limits
assert not proto.gpu_options.allow_growth
print("fine")
"""


def test_with_tensorflow_itself():
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        capture_output=True,
        text=True,
        timeout=deadline(90),
        check=False,
        env=child_environment(),
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert "mixed_float16 is slow on a CPU" in done.stderr
