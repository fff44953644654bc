"""`tfdist plan`: tables and pictures of models by name, from a file and from a script; its mistakes."""

import keras
import pytest

from tfdist.cli import main


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # so that the command finds it set


def plan(capsys, *words):
    code = main(["plan", *map(str, words)])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_a_reference_model_by_name(capsys, tmp_path):
    picture = tmp_path / "schedule.svg"
    out = plan(
        capsys,
        *("mlp", "--stages=2", "--balance=parameters", "--input-shape=8x8x1", "--microbatches=4"),
        *("--steps", f"--draw={picture}"),
    )
    assert "mlp: 2 stages, 4 microbatches of 8 rows, 1f1b" in out
    assert "stage 1   .  1F0 1B0" in out
    assert picture.read_text().startswith("<svg")


def test_a_language_model_that_fits_on_no_device_here(capsys):
    out = plan(
        capsys,
        *("gpt2_medium", "--stages=4", "--balance=parameters", "--input-shape=128"),
        *("--memory-limit=8GiB", "--recompute=full", "--batch-size=16"),
    )
    assert "Tied: embedding/embeddings" in out


def test_a_saved_model_and_a_function(capsys, tmp_path):
    model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(3))])
    model.save(tmp_path / "model.keras")
    script = tmp_path / "train.py"
    script.write_text(
        "import keras\n"
        "def build():\n"
        "    x = keras.Input((None, 3), name='x')\n"
        "    return keras.Model(x, keras.layers.Dense(2)(keras.layers.Dense(2)(x)))\n"
    )
    assert "(2)" in plan(capsys, tmp_path / "model.keras", "--stages=2", "--balance=1,2")
    out = plan(capsys, f"{script}:build", "--stages=2", "--balance=flops", "--input-shape=5x3")
    assert "4x5x2 float32" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mlpp", "--stages=2"], "Unknown model 'mlpp'. Received: mlpp. Did you mean 'mlp'"),
        (["missing.keras", "--stages=2"], "can't be loaded"),
        (["missing.py:f", "--stages=2"], "no such file. Received: missing.py"),
        (["mlp", "--stages=2", "--balance=flop"], "Did you mean 'flops'"),
        (["mlp", "--stages=0"], "`stages` must be an integer >= 1"),
        (["mlp", "--stages=2", "--input-shape=8,8"], "x between them. Received: 8,8"),
        (["mlp", "--stages=2", "--memory-limit=1apple"], "bytes, such as 16GiB"),
        (["mlp", "--stages=20", "--balance=flops"], "more stages than operations"),
        (["gpt_tiny", "--stages=2", "--balance=flops"], "Say it: "),
        (["gpt_tiny", "--stages=2", "--input-shape=3x4"], "does not fit. Received: 3x4"),
    ],
)
def test_a_mistake_is_told_on_one_line(capsys, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tfdist plan: ")
    assert told in line


def test_a_script_without_the_function(capsys, tmp_path):
    (tmp_path / "train.py").write_text("x = 1\n")
    assert main(["plan", f"{tmp_path / 'train.py'}:build", "--stages=2"]) == 2
    assert "has no function 'build'" in capsys.readouterr().err
