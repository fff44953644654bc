"""README and docs tell the truth: every program and command on them runs, every link leads somewhere."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import pages
from support.processes import child_environment, deadline

from tfdist.cli import _parser
from tfdist.config import Config
from tfdist.config.layers import slots

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): pages.read_page(path)
    for path in [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "guides").glob("*.md")),
    ]
}
MODES = {"run", "shown", "torch", "make", "ci", "elsewhere"}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
CI = MAKEFILE + (ROOT / ".ci" / "run").read_text()

HEADLINE = ("python train.py", "tfdist run -n 2 train.py")  # README's first two commands

SESSIONS = [name for name, page in PAGES.items() if page.session()]
COMMANDS = [
    pytest.param(name, command, mode, id=f"{name}: {command}")
    for name, page in PAGES.items()
    for command, mode in page.commands()
    if mode in ("run", "torch") and (name, command) not in [("README.md", c) for c in HEADLINE]
]


def run(command: list[str], folder: Path, timeout: float) -> str:
    """Runs a command of a page as a reader would, and returns its output."""
    bin_folder = str(Path(sys.executable).parent)
    environment = child_environment(
        {"PATH": bin_folder + os.pathsep + os.environ["PATH"], "TERM": "dumb"}
    )
    # Its own session: a deadline ends the workers that it started too.
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline(timeout))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate(timeout=30)
        pytest.fail(
            f"{shlex.join(command)}: no end after {timeout:.0f} s:\n{output}", pytrace=False
        )
    if process.returncode != 0:
        pytest.fail(
            f"{shlex.join(command)}: exit code {process.returncode}:\n{output}", pytrace=False
        )
    return output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with the repository's scripts in it."""
    for name in ("scripts", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def losses(output: str) -> list[float]:
    """Returns the loss that Keras's progress bar ends with in each epoch."""
    epochs = re.split(r"Epoch \d+/\d+", output)[1:]
    return [float(re.findall(r"loss: ([0-9.]+)", epoch)[-1]) for epoch in epochs]


def test_readmes_first_program_prints_the_same_losses_on_two_workers(folder: Path) -> None:
    page = PAGES["README.md"]
    assert [command for command, _ in page.commands()][:2] == list(HEADLINE)
    (folder / "train.py").write_text(page.files()["train.py"])
    alone, together = (losses(run(shlex.split(c), folder, timeout=120)) for c in HEADLINE)
    assert len(alone) == 3
    assert together == pytest.approx(alone, abs=2e-4)


@pytest.mark.parametrize("name", SESSIONS)
def test_the_snippets_run(name: str, folder: Path) -> None:
    (folder / "session.py").write_text(PAGES[name].session())
    run([sys.executable, "session.py"], folder, timeout=120)


@pytest.mark.parametrize(("name", "command", "mode"), COMMANDS)
def test_the_commands_run(name: str, command: str, mode: str, folder: Path) -> None:
    if mode == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    for file, text in PAGES[name].files().items():
        (folder / file).write_text(text)
    run(shlex.split(command), folder, timeout=180)


def test_every_block_says_what_it_is() -> None:
    for name, page in PAGES.items():
        for block in page.blocks:
            where = f"{name}, line {block.line}"
            assert block.mode in MODES, f"{where}: unknown `test: {block.mode}`"
            assert block.language in ("python", "bash", "text", "yaml", "json"), where
            if block.language == "python":
                compile(block.text, where, "exec")


def test_long_commands_are_those_of_the_makefile_and_ci() -> None:
    for name, page in PAGES.items():
        for command, mode in page.commands():
            if mode == "make":
                words = [word for word in shlex.split(command) if "=" not in word]
                assert words[0] == "make", f"{name}: {command}"
                assert set(words[1:]) <= TARGETS, f"{name}: {command}"
            elif mode == "ci":
                words = [re.escape(word) for word in command.split() if word != "python"]
                assert re.search(r"\b.*".join(words), CI), f"{name}: CI does not do {command}"


def test_commands_for_elsewhere_are_right_as_far_as_can_be_told_here() -> None:
    told = [
        (name, c) for name, page in PAGES.items() for c, m in page.commands() if m == "elsewhere"
    ]
    assert told
    for name, command in told:
        words = shlex.split(command)
        start = words.index("tfdist") if "tfdist" in words and "install" not in words else None
        if start is not None:
            _parser().parse_args(words[start + 1 :])  # exits where an option is wrong
        for word in words:
            path = word.removeprefix("--config=")
            if path.startswith(("scripts/", "configs/")):
                assert (ROOT / path).exists(), f"{name}: {command}"
        script = next((ROOT / w for w in words if w.startswith("scripts/")), None)
        if script is not None:
            flags = set(slots(Config)) | set(
                re.findall(r'DEFINE_\w+\(\s*"(\w+)"', script.read_text())
            )
            after = words[words.index(str(script.relative_to(ROOT))) + 1 :]
            used = {word[2:].partition("=")[0] for word in after if word.startswith("--")}
            assert used <= flags | {"config"}, f"{name}: {command}"


def test_every_file_of_a_page_is_used() -> None:
    for name, page in PAGES.items():
        told = "\n".join(command for command, _ in page.commands()) + page.session()
        told += "\n".join(page.files().values())
        for block in page.blocks:
            if block.file is not None and block.mode != "shown":
                assert Path(block.file).stem in told.replace(block.text, ""), (
                    f"{name}: {block.file}"
                )


def test_links_lead_somewhere() -> None:
    for name, page in PAGES.items():
        for link in pages.links(page):
            target, _, anchor = link.partition("#")
            if "://" in target:
                continue
            path = (page.path.parent / target) if target else page.path
            assert path.exists(), f"{name}: {link}"
            if anchor:
                assert anchor in pages.anchors(pages.read_page(path)), f"{name}: {link}"


def test_tensorflows_program_changes_in_one_line() -> None:
    """The promise of coming-from.md, beside the import that the line needs."""
    files = PAGES["docs/coming-from.md"].files()
    before, after = (
        [line for line in files[name].splitlines() if line]
        for name in ("tf_before.py", "tf_after.py")
    )
    changes = [
        line for line in difflib.ndiff(before, after) if line[0] in "+-" and "import" not in line
    ]
    assert [line.split()[0] for line in changes] == ["-", "+"], changes
    imports = {line for line in after if "import" in line}
    assert imports - {line for line in before if "import" in line} == {"import tfdist"}


def test_the_tables_are_current() -> None:
    output = run([sys.executable, str(ROOT / "docs" / "render.py"), "--check"], ROOT, timeout=60)
    assert output == ""


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


@pytest.mark.parametrize("command", ["fit_overhead.py --strategies=mirrored", "scaling.py"])
def test_benchmarks_run(command: str, folder: Path) -> None:
    """The smallest run of each: it is the programs that are tested, not the machine."""
    small = "--rounds=2 --steps=3 --batch=8 --size=8 --models=mlp --json=out.json"
    words = f"scripts/bench/{command} {small}".split()
    output = run([sys.executable, *words], folder, timeout=240)
    assert "Images/s" in output
    assert "mirrored" in output or "2 workers" in output
    assert '"machine"' in (folder / "out.json").read_text()
