"""Preparing data sets: once for several processes, whole or not at all, and never without end."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import tiny_images

from tfdist import data
from tfdist.data import prepare, tfds_source
from tfdist.data.locks import locked
from tfdist.errors import DataError

HERE = str(pathlib.Path(__file__).parent)

PREPARE = """
import sys
sys.path.insert(0, sys.argv[3])
import tiny_images
from tfdist.data import prepare, tfds_source
builder = tfds_source.find_builder(sys.argv[1], sys.argv[2])
print("start", flush=True)
prepare.ensure_prepared(builder, timeout=100)
print(len(list(tfds_source.find_builder(sys.argv[1], sys.argv[2]).as_dataset("train"))))
"""

HOLD = """
import fcntl, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
os.pwrite(handle, str(os.getpid()).encode(), 0)
print("held", flush=True)
time.sleep(60)
"""


def start(program, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
    )


@pytest.fixture
def holder(tmp_path):
    process = start(HOLD, tmp_path / "lock")
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate(timeout=10)


def test_a_lock_is_held_by_one(tmp_path):
    order = []

    def work(number):
        with locked(tmp_path / "lock", timeout=10, purpose="work"):
            order.append(("in", number))
            time.sleep(0.05)
            order.append(("out", number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [step for step, _ in order] == ["in", "out"] * 4


def test_waiting_for_a_lock_ends(tmp_path, holder):
    started = time.monotonic()
    message = f"did not finish preparing x within 0.3 s.*held by process {holder.pid}"
    with (
        pytest.raises(DataError, match=message),
        locked(tmp_path / "lock", timeout=0.3, purpose="preparing x"),
    ):
        pytest.fail("unreachable")
    assert time.monotonic() - started < 5


def test_a_killed_holder_leaves_no_lock(tmp_path, holder):
    threading.Timer(0.3, holder.kill).start()
    with locked(tmp_path / "lock", timeout=20, purpose="work"):
        assert holder.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match=r"Can't create|Can't write.*Set data_dir"):
        prepare.ensure_prepared(tfds_source.find_builder("digits", str(tmp_path / "data")))


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "data").touch()
    with pytest.raises(DataError, match=r"Can't create the folder.*Set data_dir"):
        prepare.ensure_prepared(tfds_source.find_builder("digits", str(tmp_path / "data")))


def test_processes_that_start_together_prepare_once(tmp_path):
    processes = [start(PREPARE, "digits", tmp_path, HERE) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=150)
        assert process.returncode == 0, err[-2000:]
        assert out.split() == ["start", "1437"]
    assert sorted(os.listdir(tmp_path / "digits")) == ["1.0.0"]


def test_a_killed_preparation_leaves_nothing_that_looks_prepared(tmp_path):
    process = start(PREPARE, "tiny_images", tmp_path, HERE, TINY_IMAGES_PAUSE="0.5")
    assert process.stdout.readline() == "start\n"
    until = time.monotonic() + 60
    while not list(tmp_path.glob("tiny_images/*incomplete*")):
        assert time.monotonic() < until
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=10)
    builder = tfds_source.find_builder("tiny_images", str(tmp_path))
    assert not builder.is_prepared()
    part = data.make_dataset("tiny_images", global_batch_size=4, data_dir=str(tmp_path))
    assert len(list(part)) == 5


def test_a_folder_that_someone_emptied_is_named(tmp_path):
    (tmp_path / "digits" / "1.0.0").mkdir(parents=True)
    with pytest.raises(DataError, match=r"incomplete.*digits/1\.0\.0.*Delete that folder"):
        data.make_dataset("digits", global_batch_size=4, data_dir=str(tmp_path))


def test_a_builder_that_fails_is_an_error_of_one_line(tmp_path, monkeypatch):
    def fail(self, count):
        raise RuntimeError("the source is\nbroken")
        yield

    monkeypatch.setattr(tiny_images.TinyImages, "_generate_examples", fail)
    with pytest.raises(
        DataError, match=r"could not be prepared\. Received: .*the source is broken"
    ):
        data.make_dataset("tiny_images", global_batch_size=4, data_dir=str(tmp_path))


# What has to be downloaded. No test may depend on a network, nor on there being none.


def servers(monkeypatch, *addresses):
    monkeypatch.setattr(prepare, "_servers", lambda builder: list(addresses))


def test_no_network_is_found_out_at_once(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers(monkeypatch, ("127.0.0.1", unused.getsockname()[1]))
        with pytest.raises(DataError) as caught:
            data.make_dataset("mnist", global_batch_size=4, data_dir=str(tmp_path))
    message = str(caught.value)
    assert f"'mnist/3.0.1' is not in {tmp_path} and could not be prepared" in message
    assert "there is no network (127.0.0.1: Connection refused)" in message
    assert "`python -m tfdist.data.prepare mnist:3.0.1 --data_dir=DIR`" in message
    assert "dataset='digits'" in message


def test_a_network_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    silent = threading.Event()

    def block(*_, **__):
        silent.wait(30)
        raise OSError

    servers(monkeypatch, ("a.invalid", 443), ("b.invalid", 443))
    monkeypatch.setattr(prepare, "PROBE_TIMEOUT", 0.1)
    monkeypatch.setattr(socket, "create_connection", block)
    started = time.monotonic()
    with pytest.raises(DataError, match=r"a\.invalid: no answer, b\.invalid: no answer"):
        data.make_dataset("mnist", global_batch_size=4, data_dir=str(tmp_path))
    silent.set()
    assert time.monotonic() - started < 10


def test_a_download_that_does_not_end_is_ended(tmp_path, monkeypatch):
    servers(monkeypatch)
    builder = tfds_source.find_builder("mnist", str(tmp_path))
    with pytest.raises(DataError, match=r"no end within 0\.5 s"):
        prepare.ensure_prepared(builder, timeout=0.5)


def test_servers_are_those_of_the_data_set_or_the_proxy(monkeypatch):
    builder = tfds_source.find_builder("cifar10", "/nowhere")
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert prepare._servers(builder) == [("www.cs.toronto.edu", 443)]
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert prepare._servers(builder) == [("proxy.example", 3128)]


def test_the_program_prepares(tmp_path, capsys):
    assert prepare.main(["digits", f"--data_dir={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"digits/1.0.0 is in {tmp_path}/digits/1.0.0\n"
    assert tfds_source.find_builder("digits", str(tmp_path)).is_prepared()
    assert prepare.main(["digist", f"--data_dir={tmp_path}"]) == 1
    assert "Did you mean 'digits'?" in capsys.readouterr().err
