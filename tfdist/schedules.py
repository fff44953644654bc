"""The learning rate for a global batch that grows with the number of replicas (weak scaling).

With `per_replica_batch_size` a step covers N times the rows, so an epoch has N times fewer steps. The
usual remedy multiplies the learning rate by N (or its root), reached gradually:

    rate x N |        ________          warm-up: the factor grows from 1
             |      /                   after:   the factor is N (linear) or sqrt(N)
    rate     |____/
             +----|----|------- steps
                warmup_steps

With `global_batch_size` the mathematics does not depend on N, and nothing is to be scaled.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import keras

from tfdist.errors import ConfigError, explain

__all__ = ["RULES", "ScaledLearningRate"]

logger = logging.getLogger(__name__)

RULES = ("linear", "sqrt")


@keras.saving.register_keras_serializable(package="tfdist")
class ScaledLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """Scales a learning rate, or a schedule, by the number of replicas.

    It counts the optimizer's own steps, which are saved with the model: a resumed run goes on at the
    right rate, and a loaded model keeps the factor that it was trained with.

    Args:
        learning_rate: the rate for one replica: a number, or a Keras schedule.
        replicas: how many replicas there are, `runtime.num_replicas`.
        rule: "linear" multiplies by `replicas`, "sqrt" by its square root.
        warmup_steps: steps over which the factor grows from 1; 0 starts with the whole factor.
        name: as of every schedule.

    Raises:
        ConfigError: if an argument is out of range, or the rate is already scaled.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        replicas: int,
        rule: str = "linear",
        warmup_steps: int = 0,
        name: str = "scaled_learning_rate",
    ) -> None:
        super().__init__()
        _check(learning_rate, replicas, rule, warmup_steps)
        self.learning_rate = learning_rate
        self.replicas = replicas
        self.rule = rule
        self.warmup_steps = warmup_steps
        self.name = name
        self.factor = float(replicas) if rule == "linear" else math.sqrt(replicas)
        logger.info(
            "Learning rate x %.3g (%s, %d replicas), reached after %d steps.",
            self.factor,
            rule,
            replicas,
            warmup_steps,
        )

    def __call__(self, step: Any) -> Any:
        """Returns the rate of a step, counted from 0."""
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        if not self.warmup_steps:
            return rate * self.factor
        step = keras.ops.cast(step, "float32")
        progress = keras.ops.minimum((step + 1.0) / self.warmup_steps, 1.0)
        return rate * (1.0 + (self.factor - 1.0) * progress)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        rate = self.learning_rate
        return {
            "learning_rate": keras.saving.serialize_keras_object(rate) if callable(rate) else rate,
            "replicas": self.replicas,
            "rule": self.rule,
            "warmup_steps": self.warmup_steps,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledLearningRate:
        """Builds it again, with the schedule inside."""
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
        return cls(**{**config, "learning_rate": rate})


def _check(learning_rate: Any, replicas: int, rule: str, warmup_steps: int) -> None:
    if isinstance(learning_rate, ScaledLearningRate):
        raise ConfigError(
            explain(
                "The learning rate is already scaled by the number of replicas",
                received=f"a ScaledLearningRate for {learning_rate.replicas} replicas",
                fix="Scale it once; a model that is loaded or resumed keeps its scaled rate",
            )
        )
    if rule not in RULES:
        raise ConfigError(
            explain(
                "Unknown rule", received=f"rule={rule!r}", fix=f"Use one of: {', '.join(RULES)}"
            )
        )
    for name, value, lowest in (("replicas", replicas, 1), ("warmup_steps", warmup_steps, 0)):
        if value < lowest:
            raise ConfigError(
                explain(
                    f"`{name}` must be at least {lowest}",
                    received=f"{name}={value}",
                    fix="Pass runtime.num_replicas"
                    if name == "replicas"
                    else "Use 0 for no warm-up",
                )
            )
