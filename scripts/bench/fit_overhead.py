"""What does `fit` cost? Keras's `fit` under tfdist beside a hand-written tf.distribute loop.

    python scripts/bench/fit_overhead.py [--rounds=15] [--json=FILE]

Both train the same model on the same arrays under the same kind of strategy, in turns (turns.py):
`mirrored` on two logical CPUs of one process, `multi_worker` on two processes. The ratio is fit's
throughput over the loop's, taken within each round; its median should be 0.97 at least.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from figures import quartiles, ratios, save, table, throughput
from turns import Contender, race

_PROGRAM = str(Path(__file__).with_name("contenders.py"))
TARGET = 0.97


def main() -> int:
    """Runs the comparisons and prints a table; 1 when a median is below the target and --check is set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", default="mirrored,multi_worker")
    parser.add_argument("--models", default="simple_cnn,mlp")
    parser.add_argument("--size", type=int, default=28, help="images are size x size")
    parser.add_argument("--batch", type=int, default=128, help="global batch size")
    parser.add_argument("--steps", type=int, default=100, help="steps of one turn")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--check", action="store_true", help=f"fail below {TARGET}")
    options = parser.parse_args()

    rows, figures, medians = [], {}, []
    for strategy in options.strategies.split(","):
        for model in options.models.split(","):
            seconds = _compare(strategy, model, options)
            low, middle, high = quartiles(ratios(seconds["fit"], seconds["loop"]))
            images = options.batch * options.steps
            rows.append(
                [
                    strategy,
                    model,
                    throughput(images, seconds["loop"]),
                    throughput(images, seconds["fit"]),
                    f"{middle:.3f} ({low:.3f}-{high:.3f})",
                ]
            )
            figures[f"{strategy}/{model}"] = {"seconds": seconds, "ratio": middle}
            medians.append(middle)
    caption = (
        f"Images/s, median (quartiles) of {options.rounds} turns of {options.steps} steps; global batch "
        f"{options.batch}, images of {options.size} x {options.size}."
    )
    shown = table(["strategy", "model", "hand-written loop", "tfdist fit", "ratio"], rows)
    print(f"{caption}\n{shown}")
    save(options.json, caption, shown, {"options": _plain(options), "results": figures})
    return 1 if options.check and min(medians) < TARGET else 0


def _compare(strategy: str, model: str, options: argparse.Namespace) -> dict[str, list[float]]:
    arguments = [
        f"--strategy={strategy}",
        f"--model={model}",
        f"--size={options.size}",
        f"--batch={options.batch}",
        f"--steps={options.steps}",
    ]
    workers = 2 if strategy == "multi_worker" else 1
    contenders = [
        Contender(kind, [sys.executable, _PROGRAM, kind, *arguments], workers)
        for kind in ("loop", "fit")
    ]
    return dict(race(contenders, options.rounds))


def _plain(options: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(options).items() if name != "json"}


if __name__ == "__main__":
    sys.exit(main())
