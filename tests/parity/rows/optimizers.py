"""Rows about optimizers: every built-in one, and what they all can do to gradients and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.context import Context, arrays, build, fit, mlp
from parity.lazy import keras
from parity.registry import row

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "Adamax": lambda: keras.optimizers.Adamax(0.01),
    "Nadam": lambda: keras.optimizers.Nadam(0.01),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.05, l1_regularization_strength=0.01),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "Lion": lambda: keras.optimizers.Lion(0.005),
    "Lamb": lambda: keras.optimizers.Lamb(0.01),
    "Muon": lambda: keras.optimizers.Muon(0.01),
    "ScheduleFreeAdamW": lambda: keras.optimizers.ScheduleFreeAdamW(0.01),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=1024.0, dynamic_growth_steps=4
    ),
}
"""Every class of keras.optimizers, but MultiOptimizer, which has its own row."""


def _optimizer_row(name: str) -> None:
    @row(f"optimizer {name}", "optimizers")
    def run(ctx: Context) -> Any:
        if not hasattr(keras.optimizers, name):
            return {"absent": True}  # from an older Keras
        model = mlp(ctx, optimizer=OPTIMIZERS[name])
        with ctx.scope():
            # Left to `fit`, stock Keras builds it while tracing: ScheduleFreeAdamW's momentums would
            # start from zeros instead of the weights.
            model.optimizer.build(model.trainable_variables)
        return fit(model, *arrays(23))


for _name in OPTIMIZERS:
    _optimizer_row(_name)


@row("optimizer MultiOptimizer", "optimizers")
def multi_optimizer(ctx: Context) -> Any:
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return {"absent": True}  # from an older Keras

    def make_optimizer() -> Any:
        sgd, adam = keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01)
        paths = keras.optimizers.OptimizerMap(adam, {".*bias": sgd})
        return keras.optimizers.MultiOptimizer(paths)

    return fit(mlp(ctx, optimizer=lambda: make_optimizer()), *arrays(24))


@row("clipnorm", "optimizers", odd=True)
def clipnorm(ctx: Context) -> Any:
    model = mlp(ctx, optimizer=lambda: keras.optimizers.SGD(0.1, clipnorm=0.2))
    return fit(model, *arrays(23))


@row("global_clipnorm", "optimizers", odd=True)
def global_clipnorm(ctx: Context) -> Any:
    model = mlp(ctx, optimizer=lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.2))
    return fit(model, *arrays(23))


@row("clipvalue", "optimizers", odd=True)
def clipvalue(ctx: Context) -> Any:
    model = mlp(ctx, optimizer=lambda: keras.optimizers.Adam(0.01, clipvalue=0.05))
    return fit(model, *arrays(23))


@row("weight decay", "optimizers")
def weight_decay(ctx: Context) -> Any:
    def make_optimizer() -> Any:
        return keras.optimizers.SGD(0.05, weight_decay=0.1)

    model = mlp(ctx, optimizer=lambda: make_optimizer())
    return fit(model, *arrays(23))


@row("weight decay, with variables excluded", "optimizers")
def weight_decay_excluded(ctx: Context) -> Any:
    def make_optimizer() -> Any:
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    return fit(mlp(ctx, optimizer=lambda: make_optimizer()), *arrays(24))


SCHEDULES: dict[str, Callable[[], Any]] = {
    "ExponentialDecay": lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
    "PiecewiseConstantDecay": lambda: keras.optimizers.schedules.PiecewiseConstantDecay(
        [2, 4], [0.1, 0.05, 0.01]
    ),
    "CosineDecayRestarts": lambda: keras.optimizers.schedules.CosineDecayRestarts(0.1, 3),
    "CosineDecay with warm-up": lambda: keras.optimizers.schedules.CosineDecay(
        0.0, 6, warmup_target=0.1, warmup_steps=2
    ),
}


def _schedule_row(name: str) -> None:
    @row(f"learning-rate schedule {name}", "optimizers")
    def run(ctx: Context) -> Any:
        model = mlp(ctx, optimizer=lambda: keras.optimizers.SGD(SCHEDULES[name]()))
        return fit(model, *arrays(24)) | {"rate": float(model.optimizer.learning_rate)}


for _name in SCHEDULES:
    _schedule_row(_name)


@row("a learning-rate schedule of the user's own", "optimizers")
def own_schedule(ctx: Context) -> Any:
    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return 0.1 * keras.ops.power(0.5, keras.ops.cast(step, "float32"))

    return fit(mlp(ctx, optimizer=lambda: keras.optimizers.Adam(Halved())), *arrays(24))


@row("variable constraints (MaxNorm)", "optimizers")
def constraints(ctx: Context) -> Any:
    def make() -> Any:
        dense = keras.layers.Dense(6, kernel_constraint=keras.constraints.MaxNorm(0.5))
        return keras.Sequential([keras.Input((4,)), dense, keras.layers.Dense(1)])

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(23))


@row("layers with trainable=False", "optimizers")
def not_trainable(ctx: Context) -> Any:
    def make() -> Any:
        frozen = keras.layers.Dense(6, activation="tanh", trainable=False)
        return keras.Sequential([keras.Input((4,)), frozen, keras.layers.Dense(1)])

    return fit(build(ctx, make, optimizer="adam", loss="mse"), *arrays(23))
