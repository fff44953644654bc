"""A ranking model for clicks: wide and deep (Cheng et al. 2016) around DLRM's products (Naumov 2019).

    ids      user  item  ...         numeric
              |     |                  |
    tables   e_0   e_1   ...        bottom MLP        all of one length
              |_____|__________________|
                        |
                products of each pair, and the numeric part
                        |
                     top MLP --> + <-- wide: a weight per id
                                 |
                               logit

Wide and deep: arXiv 1606.07792. DLRM: arXiv 1906.00091.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import keras

from tfdist.config.fields import did_you_mean
from tfdist.errors import ConfigError, explain
from tfdist.layers import ShardedEmbedding

__all__ = ["SIZES", "Size", "recommender"]


@dataclass(frozen=True)
class Size:
    """How large a recommender is.

    Attributes:
        embedding: length of an embedding.
        bottom: widths of the numeric part's hidden layers.
        top: widths of the hidden layers above the products.
    """

    embedding: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


SIZES = {
    "small": Size(8, (32,), (64, 32)),
    "base": Size(32, (128, 64), (256, 128, 64)),
    "large": Size(128, (512, 256), (1024, 512, 256)),
}


def recommender(
    vocabularies: Mapping[str, int],
    numeric_features: int,
    *,
    size: str = "small",
    shards: int | None = None,
) -> keras.Model:
    """Builds the model; its tables are divided over the parameter servers where there are any.

    Args:
        vocabularies: the number of ids of each categorical feature, by name.
        numeric_features: how many numbers a row has besides.
        size: one of `SIZES`.
        shards: of each table; None takes one for each parameter server.

    Returns:
        An uncompiled model of a dict of ids, int32 [batch, 1], by name, and "numeric", float32
        [batch, numeric_features]; float32 logits of shape [batch, 1].

    Raises:
        ConfigError: if there is no such size.
    """
    if size not in SIZES:
        raise ConfigError(
            explain(
                f"Unknown size '{size}' of the recommender",
                received=f"size={size}",
                fix=did_you_mean(size, SIZES),
            )
        )
    widths = SIZES[size]
    ids = {name: keras.Input((1,), dtype="int32", name=name) for name in vocabularies}
    numeric = keras.Input((numeric_features,), name="numeric")

    bottom = _mlp(numeric, (*widths.bottom, widths.embedding))
    vectors = [keras.layers.Reshape((1, widths.embedding))(bottom)]
    wide = []
    for name, rows in vocabularies.items():
        parts = None if shards is None else min(shards, rows)
        table = ShardedEmbedding(rows, widths.embedding, parts, name=f"{name}_embedding")
        weight = ShardedEmbedding(
            rows, 1, parts, embeddings_initializer="zeros", name=f"{name}_weight"
        )
        vectors.append(table(ids[name]))
        wide.append(keras.layers.Flatten()(weight(ids[name])))
    x = keras.layers.Concatenate()([_products(vectors), bottom])
    deep = keras.layers.Dense(1, dtype="float32", name="deep")(_mlp(x, widths.top))
    logit = keras.layers.Add(dtype="float32", name="logit")([deep, *wide])
    return keras.Model({**ids, "numeric": numeric}, logit, name=f"recommender_{size}")


def _mlp(x: keras.KerasTensor, widths: tuple[int, ...]) -> keras.KerasTensor:
    for width in widths:
        x = keras.layers.Dense(width, activation="relu")(x)
    return x


def _products(vectors: list[keras.KerasTensor]) -> keras.KerasTensor:
    """Inner products of each pair: [batch, pairs] of vectors [batch, 1, length]."""
    n = len(vectors)
    x = keras.layers.Concatenate(axis=1)(vectors)
    every = keras.layers.Dot(axes=2)([x, x])  # [batch, n, n], of which half is told twice
    pairs = [a * n + b for a, b in itertools.combinations(range(n), 2)]
    return keras.ops.take(keras.layers.Flatten()(every), pairs, axis=1)
