"""scripts/train_recommender.py: trains, saves, and what it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from support.processes import child_environment, deadline

from tfdist.data import synthetic_clicks

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_recommender.py"


def run(folder, *arguments, launcher=()):
    return subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=deadline(120),
        cwd=folder,
        env=child_environment(),
    )


def test_two_replicas_train_the_clicks(tmp_path):
    saved = tmp_path / "runs" / "recommender.keras"
    result = run(
        tmp_path,
        *("--strategy=mirrored", "--devices=cpu:2", "--shards=2", "--epochs=1"),
        *("--steps_per_epoch=100", "--verbose=2", f"--save={saved}"),
    )
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
    assert "global batch 512" in result.stderr
    (auc,) = re.findall(r"test AUC: ([\d.]+)$", result.stdout, re.MULTILINE)
    assert float(auc) > 0.74
    test = synthetic_clicks("test")
    loss, again = keras.models.load_model(saved).evaluate(
        test.features, test.labels, batch_size=2048, verbose=0
    )
    assert again == pytest.approx(float(auc), abs=2e-3)
    (told,) = re.findall(r"test loss: ([\d.]+)$", result.stdout, re.MULTILINE)
    assert loss == pytest.approx(float(told), abs=1e-3)


def test_a_table_over_two_parameter_servers(tmp_path):
    result = run(
        tmp_path,
        *("--epochs=1", "--steps_per_epoch=150", "--steps_per_execution=10", "--verbose=2"),
        launcher=("-m", "tfdist", "run", "--workers", "2", "--ps", "2"),
    )
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
    assert "2 workers + 2 ps" in result.stderr
    (auc,) = re.findall(r"test AUC: ([\d.]+)$", result.stdout, re.MULTILINE)
    assert float(auc) > 0.72


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stray",), "takes flags only"),
        (("--save=model.h5",), "ends in .keras"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, arguments, message):
    result = run(tmp_path, *arguments)
    assert result.returncode == 2
    assert re.search(rf"^ConfigError: .*{message}", result.stderr, re.MULTILINE)
