"""One device, under the same interface as the strategies that use many."""

from __future__ import annotations

import tensorflow as tf

from tfdist import keras_bridge
from tfdist.cluster import Cluster
from tfdist.strategies.marker import Marker

__all__ = ["SingleDeviceStrategy"]


class SingleDeviceStrategy(tf.distribute.OneDeviceStrategy):
    """Places every variable and every step on one device.

    It gives plain Keras' numbers; what it adds is the interface of the other strategies, so that a
    script runs on a laptop unchanged.
    """

    def __init__(self, device: str | None = None) -> None:
        """Creates the strategy.

        Args:
            device: a logical device such as "CPU:0" or "/gpu:0"; the first GPU, else the CPU, when
                None.

        Raises:
            ConfigError: if the device doesn't exist.
        """
        from tfdist.strategies.device_list import default_devices, resolve

        super().__init__(resolve([device])[0] if device else default_devices()[0])
        self.tfdist = Marker(Cluster.local())
        keras_bridge.install()
