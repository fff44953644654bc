"""scripts/train.py: one process, two workers through the launcher, and what it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from support.processes import child_environment, deadline

from tfdist import data

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


def run(folder, *arguments, launcher=(), timeout=120):
    return subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), f"--data_dir={folder / 'tfds'}", *arguments],
        capture_output=True,
        text=True,
        timeout=deadline(timeout),
        cwd=folder,
        env=child_environment({"CUDA_VISIBLE_DEVICES": ""}),
    )


def accuracy(text):
    (found,) = re.findall(r"test accuracy: ([\d.]+)$", text, re.MULTILINE)
    return float(found)


def test_two_workers_train_the_digits(folder):
    saved = folder / "runs" / "digits.keras"
    result = run(
        folder,
        *("--strategy=multi_worker", "--dataset=digits", "--epochs=5", f"--save={saved}"),
        launcher=("-m", "tfdist", "run", "-n", "2"),
        timeout=200,
    )
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
    assert accuracy(result.stdout) > 0.95
    assert result.stdout.count("test accuracy") == 1, "the chief alone reports"
    assert os.listdir(saved.parent) == ["digits.keras"]
    model = keras.models.load_model(saved)
    held_out = data.make_dataset(
        "digits", split="test", global_batch_size=360, data_dir=str(folder / "tfds")
    )
    ((images, labels),) = held_out
    right = np.mean(np.argmax(model.predict(images, verbose=0), axis=1) == labels)
    assert right == pytest.approx(accuracy(result.stdout), abs=1e-3)


def test_two_asynchronous_workers_and_an_evaluator_beside_them(folder):
    checkpoints = folder / "checkpoints"
    result = run(
        folder,
        *("--dataset=digits", "--epochs=8", "--verbose=2", f"--checkpoint_dir={checkpoints}"),
        launcher=("-m", "tfdist", "run", "--workers", "2", "--ps", "1", "--evaluator"),
        timeout=200,
    )
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
    assert accuracy(result.stdout) > 0.95
    assert "2 workers + 1 ps, each on batches of its own" in result.stderr
    assert re.search(r"\[evaluator\] .*evaluated .*\.keras at step", result.stderr)
    assert os.listdir(checkpoints / "evaluator") == ["best.keras"]


def test_a_dry_run_says_what_would_be_done(folder):
    result = run(folder, "--strategy=mirrored", "--devices=cpu:2", "--model=mlp", "--dry_run")
    assert result.returncode == 0, result.stderr[-3000:]
    for text in (
        r"strategy +mirrored +--strategy",
        r"global_batch_size +None +default",
        r"1 worker x 2 devices = 2 replicas, strategy mirrored",
        r'Model: "mlp"',
        r"steps per epoch: 45",
    ):
        assert re.search(text, result.stdout), text
    assert "Epoch 1" not in result.stdout


def test_the_other_flags(folder):
    result = run(
        folder,
        *("--strategy=single", "--optimizer=sgd", "--learning_rate=0.1", "--epochs=2"),
        *("--steps_per_epoch=60", "--steps_per_execution=4", "--jit_compile", "--verbose=2"),
        *("--train_split=train[:50%]", "--test_split=test[:100]", "--model=mlp"),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "60/60" in result.stdout
    assert accuracy(result.stdout) > 0.6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["extra"], r"ConfigError: This script takes flags only\. Received: extra"),
        (["--save=model.h5"], "ends in .keras. Received: model.h5"),
        (["--model=simple_cn"], "Unknown model 'simple_cn'.*simple_cnn"),
        (["--strategy=single", "--model=resnet50"], "'resnet50' can't be built for this data"),
        (["--strategy=single", "--optimizer=adm"], "no such optimizer. Received: adm"),
        (["--strategy=single", "--dataset=digist"], "DataError: .*Did you mean 'digits'"),
        (["--strategy=sngle"], "ngle"),
        (["--epochs=0"], "epochs"),
        (["--epoch_count=3"], "Unknown command line flag"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, arguments, message):
    result = run(folder, *arguments)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert re.search(message, result.stderr), result.stderr[-3000:]
