"""What stock Keras does wrong in optimizers, variables, layers and metrics; see `upstream_table`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from keras_bridge.upstream_table import data, error_of, linear, on_replicas, shares, stands_for
from parity.lazy import keras, tf

_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_LOSS_SCALE = "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer"
_TF_OPTIMIZER = "keras.src.backend.tensorflow.optimizer:TFOptimizer"


def in_branch(strategy: Any, function: Callable[[], Any]) -> str:
    """Returns the error of calling `function` in a branch of a `cond`, on each replica."""

    def branch(index: int) -> Any:
        def chosen() -> Any:
            function()
            return tf.constant(0)

        return tf.cond(tf.constant(True), chosen, lambda: tf.constant(1))

    return error_of(lambda: on_replicas(strategy, branch))


def merges(error: str) -> bool:
    """Whether an error is tf.distribute's refusal to merge replicas inside a branch."""
    return "merge_call" in error


def built(strategy: Any, make: Callable[[], Any], *values: float) -> tuple[Any, list[Any]]:
    """Returns an optimizer and the variables that it was built for."""
    with strategy.scope():
        variables = [keras.Variable([value], name=f"v{i}") for i, value in enumerate(values)]
        optimizer = make()
        optimizer.build(variables)
    return optimizer, variables


@stands_for(
    _OPTIMIZER,
    "apply",
    "clipnorm clips each replica's gradients before they are summed (tensorflow issue 33929)",
)
def clips_before_the_sum(strategy: Any) -> tuple[bool, Any]:
    changes = []
    for clip in ({"clipnorm": 1.0}, {"global_clipnorm": 1.0}):
        optimizer, variables = built(strategy, lambda: keras.optimizers.SGD(1.0, **clip), 0.0)  # noqa: B023

        def one(index: int) -> Any:
            optimizer.apply([tf.constant([3.0])], variables)  # noqa: B023
            return tf.constant(0)

        on_replicas(strategy, one)
        changes.append(float(variables[0].numpy()[0]))
    # The sum of the gradients is 6; clipped to 1 it moves the variable by 1.
    return changes == [-2.0, -2.0], changes


@stands_for(
    _OPTIMIZER,
    "apply",
    "gradient_accumulation_steps: merge_call inside a cond (keras issue 17429)",
)
def accumulation_crashes(strategy: Any) -> tuple[bool, Any]:
    model = linear(
        strategy, optimizer=lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    )
    error = error_of(lambda: model.fit(*data(), batch_size=8, verbose=0))
    return merges(error), error


@stands_for(
    _OPTIMIZER,
    "apply",
    "ema_overwrite_frequency: merge_call inside a cond (keras issue 17429)",
)
def ema_overwrite_crashes(strategy: Any) -> tuple[bool, Any]:
    model = linear(
        strategy,
        optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1),
    )
    error = error_of(lambda: model.fit(*data(), batch_size=8, verbose=0))
    return merges(error), error


@stands_for(
    _LOSS_SCALE,
    "_tf_apply",
    "looks for overflow in the first replica's gradients alone (keras issue 18666)",
)
def overflow_on_the_second_replica(strategy: Any) -> tuple[bool, Any]:
    optimizer, variables = built(
        strategy, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)), 0.0
    )

    def one(index: int) -> Any:
        optimizer.apply([tf.constant([1.0 if index == 0 else np.inf])], variables)
        return tf.constant(0)

    on_replicas(strategy, one)
    value = variables[0].numpy()
    return not np.isfinite(value).all(), value


@stands_for(
    _LOSS_SCALE,
    "scale_loss",
    "expects a loss that was divided by N already, where the bridge's is not (no fault)",
)
def scaled_loss(strategy: Any) -> tuple[bool, Any]:
    optimizer, _ = built(
        strategy,
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0),
        0.0,
    )
    parts = on_replicas(strategy, lambda _: optimizer.scale_loss(tf.constant(1.0)))
    return parts == [8.0, 8.0], parts


@stands_for(_TF_OPTIMIZER, "_backend_update_step", "sums the gradients inside the update")
def update_step_sums(strategy: Any) -> tuple[bool, Any]:
    optimizer, variables = built(strategy, lambda: keras.optimizers.SGD(1.0), 0.0)

    def one(index: int) -> Any:
        optimizer._backend_update_step([tf.constant([1.0])], variables, tf.constant(1.0))
        return tf.constant(0)

    on_replicas(strategy, one)
    value = float(variables[0].numpy()[0])
    return value == -2.0, value


@stands_for(_TF_OPTIMIZER, "_backend_update_step", "merges the replicas, also inside a cond")
def update_step_merges(strategy: Any) -> tuple[bool, Any]:
    optimizer, variables = built(strategy, lambda: keras.optimizers.SGD(1.0), 0.0)
    gradients = [tf.constant([1.0])]
    error = in_branch(
        strategy,
        lambda: optimizer._backend_update_step(gradients, variables, tf.constant(1.0)),
    )
    return merges(error), error


@stands_for(_TF_OPTIMIZER, "_apply_weight_decay", "merges the replicas, also inside a cond")
def weight_decay_merges(strategy: Any) -> tuple[bool, Any]:
    optimizer, variables = built(strategy, lambda: keras.optimizers.SGD(1.0, weight_decay=0.1), 1.0)
    error = in_branch(strategy, lambda: optimizer._apply_weight_decay(variables))
    return merges(error), error


@stands_for(
    _TF_OPTIMIZER,
    "_overwrite_model_variables_with_average_value",
    "updates from a replica, which tf.distribute refuses",
)
def overwriting_crashes(strategy: Any) -> tuple[bool, Any]:
    optimizer, variables = built(strategy, lambda: keras.optimizers.SGD(1.0, use_ema=True), 1.0)
    error = in_branch(
        strategy, lambda: optimizer._overwrite_model_variables_with_average_value(variables)
    )
    return bool(error), error


@stands_for(
    _TF_OPTIMIZER,
    "_backend_increment_gradient_accumulators",
    "merges the replicas, also inside a cond",
)
def accumulators_merge(strategy: Any) -> tuple[bool, Any]:
    optimizer, _ = built(
        strategy, lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), 1.0
    )
    accumulators, gradients = optimizer._accumulated_gradients, [tf.constant([1.0])]
    error = in_branch(
        strategy,
        lambda: optimizer._backend_increment_gradient_accumulators(gradients, accumulators),
    )
    return merges(error), error


@stands_for(
    "keras.src.backend.tensorflow.core:Variable",
    "_direct_assign",
    "assigning to `iterations` merges the replicas, also inside a cond",
)
def assignment_merges(strategy: Any) -> tuple[bool, Any]:
    optimizer, _ = built(strategy, lambda: keras.optimizers.SGD(1.0), 1.0)
    error = in_branch(strategy, lambda: optimizer.iterations.assign(3))
    return merges(error), error


def aggregated(strategy: Any, aggregation: str, change: Any) -> float:
    """Returns a layer's variable, born as 10, after `change(variable, replica's number)`."""
    with strategy.scope():
        layer = keras.layers.Layer()
        variable = layer.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(10.0),
            trainable=False,
            aggregation=aggregation,
        )

    def one(index: int) -> Any:
        change(variable, index)
        return tf.constant(0)

    on_replicas(strategy, one)
    return float(strategy.experimental_local_results(variable._value)[0].numpy())


@stands_for(
    "keras.src.backend.tensorflow.core:Variable",
    "_direct_assign",
    "a variable that takes the replicas' mean counts a replica of 3 rows as one of 4",
)
def mean_of_unequal_shares(strategy: Any) -> tuple[bool, Any]:
    rows = [tf.constant([0.0] * 4), tf.constant([7.0] * 3)]  # of all: a mean of 3
    change = lambda variable, index: variable.assign(tf.reduce_mean(rows[index]))  # noqa: E731
    found = aggregated(strategy, "mean", change)
    return np.isclose(found, 3.5), found


@stands_for(
    "keras.src.backend.common.variables:Variable",
    "assign_add",
    "adding to a variable that sums over N replicas counts its old value N times",
)
def adding_doubles(strategy: Any) -> tuple[bool, Any]:
    found = aggregated(strategy, "sum", lambda variable, _: variable.assign_add(1.0))
    return np.isclose(found, 22.0), found


@stands_for(
    "keras.src.backend.common.variables:Variable",
    "assign_sub",
    "subtracting from a variable that sums over N replicas counts its old value N times",
)
def subtracting_doubles(strategy: Any) -> tuple[bool, Any]:
    found = aggregated(strategy, "sum", lambda variable, _: variable.assign_sub(1.0))
    return np.isclose(found, 18.0), found


@stands_for(
    "keras.src.backend.common.variables:Variable",
    "__float__",
    "float(optimizer.learning_rate) fails (keras issue 18625)",
)
def float_fails(strategy: Any) -> tuple[bool, Any]:
    optimizer, _ = built(strategy, lambda: keras.optimizers.SGD(1.0), 1.0)
    error = error_of(lambda: float(optimizer.learning_rate))
    return "TypeError" in error, error


@stands_for(
    "keras.src.backend.common.variables:Variable",
    "__int__",
    "int(optimizer.iterations) fails (keras issue 18625)",
)
def int_fails(strategy: Any) -> tuple[bool, Any]:
    optimizer, _ = built(strategy, lambda: keras.optimizers.SGD(1.0), 1.0)
    error = error_of(lambda: int(optimizer.iterations))
    return "TypeError" in error, error


@stands_for(
    "keras.src.random.seed_generator:SeedGenerator",
    "next",
    "all replicas draw the same dropout masks (keras issue 22620)",
)
def equal_masks(strategy: Any) -> tuple[bool, Any]:
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5)
    one, two = on_replicas(strategy, lambda _: dropout(tf.ones((1, 64)), training=True))
    return (one == two).all(), (one, two)


@stands_for(
    "keras.src.layers.normalization.batch_normalization:BatchNormalization",
    "_moments",
    "a replica without rows turns the moving statistics into NaN (tensorflow issue 36224)",
)
def empty_moments(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy, lambda: keras.layers.BatchNormalization())
    x, y = data(9)  # the last batch has one row: none for replica 1
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    finite = [bool(np.isfinite(w).all()) for w in model.get_weights()]
    return not all(finite), finite


@stands_for(
    "keras.src.metrics.reduction_metrics:Mean",
    "update_state",
    "a loss tracker of a custom train_step counts replicas, whatever their rows",
)
def tracker_counts_replicas(strategy: Any) -> tuple[bool, Any]:
    with strategy.scope():
        tracker = keras.metrics.Mean()

    def one(rows: Any) -> Any:
        tracker.update_state(tf.reduce_mean(rows))
        return tf.constant(0)

    shares(strategy, np.arange(7, dtype="float32"), 4, one)
    result = float(tracker.result())
    return np.isclose(result, (1.5 + 5.0) / 2) and result != 3.0, result
