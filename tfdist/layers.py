"""Keras layers that know about replicas and shards."""

from __future__ import annotations

from typing import Any

import keras

from tfdist.sharded_embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding", "SyncBatchNormalization"]


@keras.saving.register_keras_serializable("tfdist")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """BatchNormalization whose statistics are those of the global batch, as on one device.

    It is `keras.layers.BatchNormalization` with `synchronized=True` as the default; to convert a
    model's own layers instead, use `tfdist.create(sync_batch_norm=True)`.
    """

    def __init__(self, *args: Any, synchronized: bool = True, **kwargs: Any) -> None:
        """Creates the layer; takes `keras.layers.BatchNormalization`'s arguments."""
        super().__init__(*args, synchronized=synchronized, **kwargs)
