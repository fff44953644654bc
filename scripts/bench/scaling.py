"""Do two workers train faster than one? tfdist beside PyTorch's DistributedDataParallel over gloo.

    pip install -e '.[bench]'
    python scripts/bench/scaling.py [--rounds=15] [--json=FILE]

Every worker is a process with one thread on a core of its own and the same per-worker batch (weak
scaling: two workers see twice the images in a step). All four contenders take turns (turns.py).
Without PyTorch its columns are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from figures import quartiles, ratios, save, table, throughput
from turns import Contender, race

_PROGRAM = str(Path(__file__).with_name("contenders.py"))
_NAMES = {"fit": "tfdist fit", "ddp": "PyTorch DDP (gloo)"}


def main() -> int:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="simple_cnn,mlp")
    parser.add_argument("--size", type=int, default=28, help="images are size x size")
    parser.add_argument("--batch", type=int, default=64, help="batch size of each worker")
    parser.add_argument("--steps", type=int, default=50, help="steps of one turn")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()

    kinds = ["fit"] + (["ddp"] if importlib.util.find_spec("torch") else [])
    rows, figures = [], {}
    for model in options.models.split(","):
        contenders = [_contender(kind, n, model, options) for kind in kinds for n in (1, 2)]
        seconds = race(contenders, options.rounds)
        for kind in kinds:
            one, two = seconds[f"{kind} x 1"], seconds[f"{kind} x 2"]
            images = options.batch * options.steps
            low, middle, high = (2 * q for q in quartiles(ratios(two, one)))
            rows.append(
                [
                    model,
                    _NAMES[kind],
                    throughput(images, one),
                    throughput(2 * images, two),
                    f"{middle:.2f} ({low:.2f}-{high:.2f})",
                ]
            )
        figures[model] = dict(seconds)
    caption = (
        f"Images/s, median (quartiles) of {options.rounds} turns of {options.steps} steps; "
        f"{options.batch} images of {options.size} x {options.size} per worker and step, one core and "
        "one thread each."
    )
    shown = table(["model", "program", "1 worker", "2 workers", "speed-up (of 2)"], rows)
    print(f"{caption}\n{shown}")
    save(options.json, caption, shown, {"options": _plain(options), "results": figures})
    return 0


def _contender(kind: str, workers: int, model: str, options: argparse.Namespace) -> Contender:
    return Contender(
        f"{kind} x {workers}",
        [
            sys.executable,
            _PROGRAM,
            kind,
            f"--strategy={'multi_worker' if workers > 1 else 'single'}",
            f"--model={model}",
            f"--size={options.size}",
            f"--batch={options.batch * workers}",
            f"--steps={options.steps}",
        ],
        workers,
        one_core_each=True,
    )


def _plain(options: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(options).items() if name != "json"}


if __name__ == "__main__":
    sys.exit(main())
