"""Several devices of one process, each with a copy of the model."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist import keras_bridge
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError, explain
from tfdist.strategies.device_list import default_devices, resolve
from tfdist.strategies.marker import Marker

__all__ = ["MirroredStrategy"]


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy` under which Keras 3 `fit` equals one device.

    The devices are checked before use, logical CPU devices count like GPUs, and NCCL is used only
    where it exists.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
    ) -> None:
        """Creates the strategy.

        Args:
            devices: logical devices, one replica each; all GPUs, else all logical CPUs, when None.
            cross_device_ops: how gradients are summed; NCCL between GPUs, else through host memory,
                when None.

        Raises:
            ConfigError: if a device doesn't exist, or NCCL is asked for without GPUs.
        """
        names = resolve(devices) if devices is not None else default_devices()
        all_gpu = all(name.startswith("GPU") for name in names)
        if isinstance(cross_device_ops, tf.distribute.NcclAllReduce) and not all_gpu:
            raise ConfigError(
                explain(
                    "NCCL works between GPUs only (tensorflow issue 33656)",
                    received=f"cross_device_ops=NcclAllReduce, devices={names}",
                    fix="Leave `cross_device_ops` out, or use tf.distribute.HierarchicalCopyAllReduce()",
                )
            )
        if cross_device_ops is None and not all_gpu:
            cross_device_ops = tf.distribute.ReductionToOneDevice()
        super().__init__(devices=names, cross_device_ops=cross_device_ops)
        self.tfdist = Marker(Cluster.local())
        keras_bridge.install()
