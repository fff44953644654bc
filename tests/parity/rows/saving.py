"""Rows about saving, loading and exporting, also from one strategy to another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from parity.context import Context, arrays, build, fit, state
from parity.lazy import keras, tf
from parity.registry import row

SOURCES = ("reference", "mirrored", "multi_worker")


def _model(ctx: Context) -> Any:
    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, activation="tanh"),
                keras.layers.LayerNormalization(),
                keras.layers.BatchNormalization(trainable=False),
                keras.layers.Dense(1),
            ]
        )

    return build(
        ctx,
        make,
        optimizer=lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
        loss="mse",
        metrics=["mae"],
    )


def _agree(ctx: Context, name: str) -> None:
    """Holds every rank until all are here: a file of the chief's may then be read by the others."""
    marker = getattr(ctx.strategy, "tfdist", None)
    if marker is not None and marker.num_workers > 1:
        from tfdist.strategies import coordination

        coordination.barrier(ctx.strategy, f"parity-{ctx.folder.name}-{name}", timeout=60.0)


@row("save and load .keras, training goes on", "saving", odd=True)
def whole_model(ctx: Context) -> Any:
    model = _model(ctx)
    fit(model, *arrays(), epochs=1)
    model.save(ctx.path("model.keras"))
    _agree(ctx, "saved")
    with ctx.scope():
        loaded = keras.models.load_model(ctx.path("model.keras"))
    restored = state(loaded)
    result = fit(loaded, *arrays(), epochs=1)
    return result | {"restored": restored, "predicted": loaded.predict(arrays()[0], verbose=0)}


@row("save and load .weights.h5 with the optimizer's state", "saving", odd=True)
def weights_file(ctx: Context) -> Any:
    """The new model's optimizer is not built when its state is loaded."""
    model = _model(ctx)
    fit(model, *arrays(), epochs=1)
    model.save_weights(ctx.path("model.weights.h5"))
    _agree(ctx, "saved")
    keras.utils.set_random_seed(99)
    fresh = _model(ctx)
    if ctx.strategy is None:  # stock Keras drops the state of an optimizer that is not built
        fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(ctx.path("model.weights.h5"))
    return fit(fresh, *arrays(), epochs=1)


@row("SavedModel export", "saving")
def exported(ctx: Context) -> Any:
    model = _model(ctx)
    x, y = arrays()
    fit(model, x, y)
    model.export(ctx.path("exported"), verbose=False)
    _agree(ctx, "exported")
    artifact = tf.saved_model.load(ctx.path("exported"))  # owns the variables while it is alive
    return {"served": np.asarray(artifact.serve(x)), "predicted": model.predict(x, verbose=0)}


@row("a subclassed model, saved and loaded", "saving")
def subclassed(ctx: Context) -> Any:
    @keras.saving.register_keras_serializable("parity", "Saved")
    class Saved(keras.Model):
        def __init__(self, units: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.units = units
            self.hidden = keras.layers.Dense(units, activation="tanh")
            self.out = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

        def get_config(self) -> Mapping[str, Any]:
            return super().get_config() | {"units": self.units}

    model = build(ctx, lambda: Saved(5), optimizer="adam", loss="mse")
    fit(model, *arrays(), epochs=1)
    model.save(ctx.path("sub.keras"))
    _agree(ctx, "saved")
    with ctx.scope():
        loaded = keras.models.load_model(ctx.path("sub.keras"))
    return fit(loaded, *arrays(), epochs=1)


@row("get_weights and set_weights", "saving")
def set_weights(ctx: Context) -> Any:
    model, other = _model(ctx), _model(ctx)
    fit(model, *arrays(), epochs=1)
    other.set_weights(model.get_weights())
    return {"predicted": other.predict(arrays()[0], verbose=0)} | fit(other, *arrays(), epochs=1)


def keep_models(lab: Any, column: str, folder: str, shared: str) -> None:
    """Trains under `column` and leaves a model and its weights for the other columns to load."""
    from parity.columns import reset

    reset()
    ctx = Context(column, lab.strategies[column], Path(folder), Path(shared), lab.rank)
    model = _model(ctx)
    fit(model, *arrays(), epochs=1)
    model.save(str(ctx.shared / f"{column}.keras"))
    model.save_weights(str(ctx.shared / f"{column}.weights.h5"))
    _agree(ctx, "kept")


def _load_row(source: str, title: str) -> None:
    @row(f"load what {title} saved", "saving", needs=(source,), odd=source == "mirrored")
    def run(ctx: Context) -> Any:
        with ctx.scope():
            loaded = keras.models.load_model(str(ctx.shared / f"{source}.keras"))
        first = fit(loaded, *arrays(), epochs=1)
        fresh = _model(ctx)
        if ctx.strategy is None:
            fresh.optimizer.build(fresh.trainable_variables)
        fresh.load_weights(str(ctx.shared / f"{source}.weights.h5"))
        return first | {"from weights": fit(fresh, *arrays(), epochs=1)}


for _source, _title in zip(SOURCES, ("one device", "mirrored", "multi_worker")):
    _load_row(_source, _title)
