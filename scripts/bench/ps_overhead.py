"""What does `fit` cost on a coordinator? Beside a hand-written loop over a ClusterCoordinator.

    python scripts/bench/ps_overhead.py [--rounds=11] [--workers=2] [--json=FILE]

Both have clusters of their own, of a chief, workers and one parameter server, and train the same
model on the same data without end, read by the workers; they take turns (turns.py). The loop is that
of TensorFlow's guide to parameter servers: it schedules steps, joins, and reads the metrics. Both
run `--execution` steps per function that is scheduled. The ratio is fit's throughput over the
loop's, taken within each round; its median should be 0.95 at least.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from figures import quartiles, ratios, save, table, throughput
from turns import Contender, end_turn, race, wait_for_turn
from workloads import images, keras_model

TARGET = 0.95
_FOREVER = 1_000_000  # epochs; the end of stdin ends the process


def main() -> int:
    """Runs the comparison, or one program of it; 1 when a median is below the target with --check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=sorted(_KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--models", default="simple_cnn,mlp")
    parser.add_argument("--model", default="mlp", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=28, help="images are size x size")
    parser.add_argument("--batch", type=int, default=128, help="rows of a step")
    parser.add_argument("--steps", type=int, default=200, help="steps of one turn")
    parser.add_argument("--executions", default="1,20", help="steps per scheduled function")
    parser.add_argument("--execution", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=11, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--check", action="store_true", help=f"fail below {TARGET}")
    options = parser.parse_args()
    if options.kind:
        _KINDS[options.kind](options)
        return 0
    return _compare_all(options)


def _compare_all(options: argparse.Namespace) -> int:
    rows, figures, medians = [], {}, []
    for model in options.models.split(","):
        for execution in map(int, options.executions.split(",")):
            contenders = [
                Contender(
                    kind, [sys.executable, __file__, kind, *_passed(options, model, execution)]
                )
                for kind in ("loop", "fit")
            ]
            seconds = dict(race(contenders, options.rounds))
            low, middle, high = quartiles(ratios(seconds["fit"], seconds["loop"]))
            done = options.batch * options.steps
            rows.append(
                [
                    model,
                    str(execution),
                    throughput(done, seconds["loop"]),
                    throughput(done, seconds["fit"]),
                    f"{middle:.3f} ({low:.3f}-{high:.3f})",
                ]
            )
            figures[f"{model}/{execution}"] = {"seconds": seconds, "ratio": middle}
            medians.append(middle)
    caption = (
        f"Images/s, median (quartiles) of {options.rounds} turns of {options.steps} steps; "
        f"{options.workers} workers and 1 ps, batches of {options.batch} images of {options.size} x "
        f"{options.size}."
    )
    header = ["model", "steps per execution", "hand-written loop", "tfdist fit", "ratio"]
    shown = table(header, rows)
    print(f"{caption}\n{shown}")
    plain = {name: value for name, value in vars(options).items() if name != "json"}
    save(options.json, caption, shown, {"options": plain, "results": figures})
    return 1 if options.check and min(medians) < TARGET else 0


def _passed(options: argparse.Namespace, model: str, execution: int) -> list[str]:
    names = ("workers", "size", "batch", "steps")
    return [
        f"--model={model}",
        f"--execution={execution}",
        *(f"--{name}={getattr(options, name)}" for name in names),
    ]


def _start_cluster(options: argparse.Namespace) -> None:
    """Starts the servers of this program's own cluster, and makes this process its chief."""
    import socket

    held = [socket.socket() for _ in range(2 + options.workers)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    chief, ps, *workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    cluster = {"chief": [chief], "worker": workers, "ps": [ps]}
    servers = []
    for role, index in [("ps", 0), *(("worker", index) for index in range(options.workers))]:
        task = {"cluster": cluster, "task": {"type": role, "index": index}}
        servers.append(
            subprocess.Popen(
                [sys.executable, __file__, "serve"],
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
                stdin=subprocess.PIPE,  # its end ends them
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    atexit.register(lambda: [one.kill() for one in servers])
    chief_task = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    os.environ["TF_CONFIG"] = json.dumps(chief_task)


def serve(options: argparse.Namespace) -> None:
    """A worker or a parameter server, of either program, until stdin ends."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4),
    )
    sys.stdin.read()
    os._exit(0)


def _dataset(options: argparse.Namespace) -> Any:
    import tensorflow as tf

    x, y = images(options.batch * 20, options.size)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return dataset.repeat().batch(options.batch, drop_remainder=True).prefetch(2)


def _compiled(options: argparse.Namespace) -> Any:
    import keras

    model = keras_model(options.model, options.size)
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=options.execution,
    )
    return model


def fit(options: argparse.Namespace) -> None:
    """`model.fit` under tfdist; a turn is an epoch of one long `fit`."""
    _start_cluster(options)
    import keras

    from tfdist.strategies import ParameterServerStrategy

    strategy = ParameterServerStrategy()
    with strategy.scope():
        model = _compiled(options)

    class Turns(keras.callbacks.Callback):
        """Waits before each epoch but the first, which traces and warms up."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                wait_for_turn()
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                end_turn(time.perf_counter() - self.began)

    model.fit(
        lambda context: _dataset(options),
        epochs=_FOREVER,
        steps_per_epoch=options.steps,
        callbacks=[Turns()],
        verbose=0,
    )


def loop(options: argparse.Namespace) -> None:
    """What one writes without tfdist: TensorFlow's strategy and coordinator, and a loop."""
    _start_cluster(options)
    import keras
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = keras_model(options.model, options.size)
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        mean_loss = keras.metrics.Mean()
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def replica_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            value = loss(y, logits)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean_loss.update_state(value)
        accuracy.update_state(y, logits)

    @tf.function
    def step(iterator: Any) -> None:
        for _ in tf.range(options.execution):
            strategy.run(replica_step, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(lambda: _dataset(options)))

    def block() -> None:
        for metric in (mean_loss, accuracy):
            metric.reset_state()
        for _ in range(options.steps // options.execution):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        float(mean_loss.result()), float(accuracy.result())

    block()
    while True:
        wait_for_turn()
        began = time.perf_counter()
        block()
        end_turn(time.perf_counter() - began)


_KINDS = {"fit": fit, "loop": loop, "serve": serve}

if __name__ == "__main__":
    sys.exit(main())
