"""scripts/train_lm.py: the same perplexity on one device and two workers, a sample, and what it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from support.processes import child_environment, deadline

from tfdist.models import transformer

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_lm.py"
TEXT = "the quick brown fox jumps over the lazy dog; " * 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train_lm")
    (folder / "fox.txt").write_text(TEXT)
    return folder


def run(folder, *arguments, launcher=(), timeout=150):
    return subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=deadline(timeout),
        cwd=folder,
        env=child_environment({"CUDA_VISIBLE_DEVICES": ""}),
    )


SMALL = (
    *("--text=fox.txt", "--context=32", "--epochs=2", "--steps_per_epoch=10", "--seed=1"),
    *("--sample=40", "--prompt=the quick ", "--temperature=0", "--steps_per_execution=5"),
)
WAYS = {
    "single": (("--strategy=single",), ()),
    "multi_worker": (("--strategy=multi_worker",), ("-m", "tfdist", "run", "-n", "2")),
}


@pytest.fixture(scope="module")
def printed(folder):
    """What the script prints under each strategy."""
    found = {}
    for name, (arguments, launcher) in WAYS.items():
        saved = f"--save=runs/{name}.keras"
        result = run(folder, *SMALL, *arguments, saved, launcher=launcher)
        assert result.returncode == 0, result.stderr[-3000:]
        found[name] = result.stdout
    return found


def perplexities(text):
    return [float(x) for x in re.findall(r"perplexity:? ([\d.]+)$", text, re.MULTILINE)]


def test_every_strategy_learns_the_same(printed):
    single = perplexities(printed["single"])
    assert len(single) == 3, "after each epoch, and of the test"
    assert 1 < single[-1] < 20
    assert single[-1] == single[-2] < single[0]
    # The chief alone reports.
    assert perplexities(printed["multi_worker"]) == pytest.approx(single, rel=1e-3)


def test_the_sample_goes_on_from_the_prompt(printed):
    for text in printed.values():
        (sample,) = re.findall(r"sample: (.*)$", text, re.MULTILINE)
        assert sample.startswith("the quick ")


def test_the_saved_model_goes_on_alone(folder, printed):
    model = keras.saving.load_model(folder / "runs" / "multi_worker.keras", compile=False)
    prompt = list(b"the quick ")
    whole = transformer.generate(model, prompt, 8, context=32, temperature=0)
    assert whole[:10].tolist() == prompt
    step = transformer.generate(model, whole[:-1], 1, context=32, temperature=0)
    assert step.tolist() == whole.tolist()
    draws = [
        transformer.generate(model, prompt, 30, context=16, seed=s).tolist() for s in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == 40


def test_a_dry_run_says_what_would_be_done(folder):
    result = run(folder, "--strategy=single", "--size=mini", "--dropout=0.1", "--dry_run")
    assert result.returncode == 0, result.stderr[-3000:]
    for text in ('Model: "gpt_mini"', r"strategy +single +--strategy", r"steps: 3\d\d"):
        assert re.search(text, result.stdout), text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["extra"], r"ConfigError: This script takes flags only\. Received: extra"),
        (["--save=model.h5"], "ends in .keras. Received: model.h5"),
        (["--prompt="], "has to begin with something"),
        (["--strategy=single", "--size=tny"], "Unknown size 'tny'.*Did you mean 'tiny'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, arguments, message):
    result = run(folder, *arguments)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert re.search(message, result.stderr), result.stderr[-3000:]
