"""Makes sure that all workers run the same job, before the first step goes wrong or hangs."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from tfdist import __version__
from tfdist.errors import ConfigError, explain

if TYPE_CHECKING:
    from tfdist.config import Config
    from tfdist.devices import Devices

__all__ = ["agree", "differences"]

# May differ between workers: they concern one process or its host alone.
_OWN = frozenset(
    {
        "allow_single",
        "cache",
        "data_dir",
        "devices",
        "parallel_calls",
        "prefetch",
        "start_timeout",
        "verbose",
    }
)
# Each host may have its own path, but all write or none does: writing takes all workers.
_PATHS = frozenset({"backup_dir", "checkpoint_dir", "log_dir"})


def agree(strategy: Any, config: Config, devices: Devices, timeout: float) -> int:
    """Compares the workers' settings, versions and devices, and draws a seed that all share.

    Args:
        strategy: a tfdist strategy; nothing is compared on one worker.
        config: this worker's settings.
        devices: this worker's devices.
        timeout: seconds to wait for the others.

    Returns:
        A seed for what must be the same everywhere, such as the order of the data: the Config's,
        or the chief's random one.

    Raises:
        ConfigError: on every worker alike, if one differs from the first; it names what differs.
        ClusterError: a worker did not arrive in time.
    """
    import keras
    import tensorflow as tf

    settings = {
        name: ("given" if value else None) if name in _PATHS else value
        for name, value in config.flat().items()
        if name not in _OWN
    }
    facts = {
        "versions": f"tfdist {__version__}, TensorFlow {tf.__version__}, Keras {keras.__version__}",
        "devices": f"{devices.count} {devices.kind}",
        **settings,
    }
    draw = secrets.randbits(31)
    text = json.dumps({"facts": facts, "draw": draw})
    others = [json.loads(item) for item in strategy.tfdist.exchange("create", text, timeout)]
    found = differences([item["facts"] for item in others])
    if found:
        raise ConfigError(
            explain(
                "All workers must run the same job on the same kind and number of devices",
                received="; ".join(found),
                fix="Start every worker with the same settings, versions and devices; a value may "
                "come from a flag, a file or a TFDIST_ variable of one host (Config.explain())",
            )
        )
    return config.seed if config.seed is not None else int(others[0]["draw"])


def differences(facts: list[dict[str, Any]]) -> list[str]:
    """Lists how the workers differ from the first one.

    Args:
        facts: name to value, by rank.

    Returns:
        Texts such as "seed: 2 on worker 1, 1 on worker 0"; empty when all agree.
    """
    found = []
    for name, value in facts[0].items():
        for rank, other in enumerate(facts):
            if other.get(name) != value:
                found.append(f"{name}: {other.get(name)} on worker {rank}, {value} on worker 0")
                break
    return found
