"""Makes Keras 3's training loop right under tfdist's strategies.

Every replaced function of Keras stands in a table of repairs, one in each module here; each names
what Keras does without it. They act only on models and optimizers of a tfdist strategy.
"""

from __future__ import annotations

__all__ = ["install"]


def install() -> None:
    """Installs the repairs; further calls do nothing."""
    from tfdist.keras_bridge import (
        callbacks,
        compiling,
        layers,
        losses,
        optimizer,
        padding,
        saving,
        trainer,
        variables,
    )
    from tfdist.keras_bridge.patching import apply_repairs

    for module in (losses, optimizer, variables, layers, compiling, padding, trainer):
        apply_repairs(module.REPAIRS)
    saving.install()
    callbacks.install()
