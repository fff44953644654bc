"""A parameter server of test_embedding_on_servers.py: imports nothing but TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["cluster_spec", "serve"]

_servers: list[Any] = []  # they serve as long as they are referred to


def serve(addresses: str, index: str) -> None:
    """Starts a parameter server, which serves until its process is ended."""
    _servers.append(tf.distribute.Server(cluster_spec(addresses), "ps", int(index)))


def cluster_spec(addresses: str) -> tf.train.ClusterSpec:
    """Returns a cluster of one worker and as many parameter servers as there are addresses left."""
    worker, *servers = addresses.split(",")
    return tf.train.ClusterSpec({"worker": [worker], "ps": servers})
