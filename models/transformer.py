"""Transformers: a GPT-style decoder for language modelling and a BERT-style encoder.

Plain functional Keras models. The sizes are those of GPT-2 (Radford et al. 2019, "Language models are
unsupervised multitask learners", table 2) and BERT (Devlin et al. 2018, arXiv 1810.04805, section 3;
the small ones Turc et al. 2019, arXiv 1908.08962), beside "tiny" ones that train on a laptop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfdist.config.fields import did_you_mean
from tfdist.errors import ConfigError, explain

__all__ = [
    "BERT",
    "GPT",
    "PositionEmbedding",
    "TiedEmbedding",
    "TransformerSize",
    "bert",
    "generate",
    "gpt",
]

_BYTES = 256


@dataclass(frozen=True)
class TransformerSize:
    """The sizes of a transformer.

    Attributes:
        vocabulary: number of tokens.
        context: the longest sequence.
        width: size of a token's vector.
        depth: number of blocks.
        heads: attention heads of a block.
        segments: kinds of segment that a token may be in; BERT's two sentences.
    """

    vocabulary: int
    context: int
    width: int
    depth: int
    heads: int
    segments: int = 0

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            ConfigError: a size is not positive, or the heads don't divide the width.
        """
        for name in ("vocabulary", "context", "width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    explain(
                        f"`{name}` must be at least 1",
                        received=f"{name}={getattr(self, name)}",
                        fix=f"Use a larger {name}",
                    )
                )
        if self.width % self.heads:
            raise ConfigError(
                explain(
                    "`heads` must divide `width`",
                    received=f"width={self.width}, heads={self.heads}",
                    fix="Change one of the two",
                )
            )

    @property
    def parameters(self) -> int:
        """Number of weights of the model, by arithmetic: nothing is built."""
        width = self.width
        norm = 2 * width
        attention = 4 * (width * width + width)
        feed_forward = 2 * 4 * width * width + 4 * width + width
        embeddings = (self.vocabulary + self.context + self.segments) * width
        # GPT ends with a normalisation; BERT begins with one and ends with the pooler.
        ends = norm + (width * width + width if self.segments else 0)
        return embeddings + self.depth * (attention + feed_forward + 2 * norm) + ends


GPT: Mapping[str, TransformerSize] = {
    "tiny": TransformerSize(_BYTES, 64, 64, 2, 4),
    "mini": TransformerSize(_BYTES, 128, 192, 4, 6),
    "gpt2": TransformerSize(50257, 1024, 768, 12, 12),
    "gpt2_medium": TransformerSize(50257, 1024, 1024, 24, 16),
    "gpt2_large": TransformerSize(50257, 1024, 1280, 36, 20),
    "gpt2_xl": TransformerSize(50257, 1024, 1600, 48, 25),
}

BERT: Mapping[str, TransformerSize] = {
    "tiny": TransformerSize(30522, 512, 128, 2, 2, segments=2),
    "mini": TransformerSize(30522, 512, 256, 4, 4, segments=2),
    "small": TransformerSize(30522, 512, 512, 4, 8, segments=2),
    "medium": TransformerSize(30522, 512, 512, 8, 8, segments=2),
    "base": TransformerSize(30522, 512, 768, 12, 12, segments=2),
    "large": TransformerSize(30522, 512, 1024, 24, 16, segments=2),
}


def gpt(
    size: str | TransformerSize = "tiny", *, dropout: float = 0.0, **changes: Any
) -> keras.Model:
    """Builds a decoder that predicts the next token: GPT-2's, with tied embeddings.

    Args:
        size: a name in `GPT`, or sizes of one's own.
        dropout: share of each block's outputs, of the attention weights and of the embeddings that
            is dropped in training; 0.1 in GPT-2.
        **changes: sizes to change, such as `vocabulary=512`.

    Returns:
        An uncompiled model from token numbers, int32 [batch, time], to float32 logits of the token
        that follows each, [batch, time, vocabulary]. Time is at most the context.

    Raises:
        ConfigError: the name or a size is wrong.
    """
    sizes, name = _sizes(size, GPT, changes), _name(size, "gpt")
    initializer = _initializer()
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = TiedEmbedding(
        sizes.vocabulary, sizes.width, embeddings_initializer=initializer, name="embedding"
    )
    x = PositionEmbedding(sizes.context, name="positions")(embedding(tokens))
    x = _dropped(x, dropout, "embedding_dropout")
    for block in range(sizes.depth):
        prefix = f"block{block}"
        y = _norm(f"{prefix}_norm1")(x)
        y = _attention(sizes, dropout, f"{prefix}_attention")(y, y, use_causal_mask=True)
        y = _dropped(y, dropout, f"{prefix}_dropout1")
        x = keras.layers.Add(name=f"{prefix}_add1")([x, y])
        y = _feed_forward(_norm(f"{prefix}_norm2")(x), sizes, prefix)
        y = _dropped(y, dropout, f"{prefix}_dropout2")
        x = keras.layers.Add(name=f"{prefix}_add2")([x, y])
    x = _norm("norm")(x)
    x = embedding(x, reverse=True)
    # float32 also under mixed precision: a softmax of float16 logits underflows to log(0).
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(tokens, logits, name=name)


def bert(
    size: str | TransformerSize = "tiny", *, dropout: float = 0.0, **changes: Any
) -> keras.Model:
    """Builds BERT's encoder. Token 0 is padding, which nothing attends to.

    Args:
        size: a name in `BERT`, or sizes of one's own.
        dropout: share that is dropped in training; 0.1 in BERT.
        **changes: sizes to change, such as `vocabulary=512`.

    Returns:
        An uncompiled model of two inputs, int32 [batch, time]: `tokens`, and `segments`, 0 or 1;
        and two outputs, float32: `sequence` [batch, time, width], and `pooled` [batch, width] of
        the first token.

    Raises:
        ConfigError: the name or a size is wrong.
    """
    sizes, name = _sizes(size, BERT, changes), _name(size, "bert")
    initializer = _initializer()
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    segments = keras.Input((None,), dtype="int32", name="segments")
    x = keras.layers.Embedding(
        sizes.vocabulary,
        sizes.width,
        embeddings_initializer=initializer,
        name="embedding",
    )(tokens)
    # [batch, 1, time]: the same for every token that looks. Given to each attention by name, because
    # Keras's own masks end at an addition with an unmasked tensor.
    words = keras.ops.expand_dims(keras.ops.not_equal(tokens, 0), 1)
    x = PositionEmbedding(sizes.context, name="positions")(x)
    kinds = keras.layers.Embedding(
        max(sizes.segments, 1), sizes.width, embeddings_initializer=initializer, name="kinds"
    )(segments)
    x = _norm("norm", 1e-12)(keras.layers.Add(name="add")([x, kinds]))
    x = _dropped(x, dropout, "embedding_dropout")
    for block in range(sizes.depth):
        prefix = f"block{block}"
        y = _attention(sizes, dropout, f"{prefix}_attention")(x, x, attention_mask=words)
        y = _dropped(y, dropout, f"{prefix}_dropout1")
        x = _norm(f"{prefix}_norm1", 1e-12)(keras.layers.Add(name=f"{prefix}_add1")([x, y]))
        y = _dropped(_feed_forward(x, sizes, prefix), dropout, f"{prefix}_dropout2")
        x = _norm(f"{prefix}_norm2", 1e-12)(keras.layers.Add(name=f"{prefix}_add2")([x, y]))
    sequence = keras.layers.Activation("linear", dtype="float32", name="sequence")(x)
    pooled = keras.layers.Dense(
        sizes.width, activation="tanh", kernel_initializer=initializer, name="pooled"
    )(sequence[:, 0])
    return keras.Model(
        {"tokens": tokens, "segments": segments},
        {"sequence": sequence, "pooled": pooled},
        name=name,
    )


def generate(
    model: keras.Model,
    prompt: np.ndarray,
    length: int,
    *,
    context: int,
    temperature: float = 1.0,
    seed: int | None = None,
) -> np.ndarray:
    """Goes on with a text, token by token. It is computed in this process alone.

    Args:
        model: what `gpt` built.
        prompt: token numbers, [time], at least one.
        length: how many tokens to add.
        context: how many of the last tokens the model sees; at most its own context.
        temperature: below 1 keeps to likely tokens; 0 always takes the likeliest.
        seed: of the choices.

    Returns:
        The prompt and what follows, int32 [time + length].
    """
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((1, context), tf.int32)])
    def scores(window: Any) -> Any:
        return model(window, training=False)[0]

    generator = np.random.default_rng(seed)
    tokens = [int(token) for token in prompt]
    for _ in range(length):
        seen = tokens[-context:]
        # What stands behind the last token changes nothing: the model sees the past only.
        window: np.ndarray = np.zeros((1, context), np.int32)
        window[0, : len(seen)] = seen
        logits = scores(window).numpy()[len(seen) - 1].astype(np.float64)
        if temperature > 0:  # Gumbel's trick: the largest of these is a draw from the softmax
            logits = logits / temperature + generator.gumbel(size=logits.shape)
        tokens.append(int(logits.argmax()))
    return np.array(tokens, np.int32)


@keras.saving.register_keras_serializable(package="tfdist")
class TiedEmbedding(keras.layers.Embedding):
    """An embedding that also turns vectors into a score for each word (Press and Wolf 2016).

    `layer(tokens)` looks vectors up; `layer(vectors, reverse=True)` multiplies them by the table.
    """

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        """Looks up, or projects back."""
        if not reverse:
            return super().call(inputs)
        return keras.ops.matmul(inputs, keras.ops.transpose(self.embeddings))

    def compute_output_spec(self, inputs: Any, reverse: bool = False) -> keras.KerasTensor:
        """The vectors' or the scores' shape."""
        if not reverse:
            return super().compute_output_spec(inputs)
        return keras.KerasTensor((*inputs.shape[:-1], self.input_dim), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="tfdist")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector for each position.

    Args:
        context: number of positions.
        **kwargs: as of every layer.
    """

    def __init__(self, context: int, **kwargs: Any) -> None:
        """Makes the layer; the table is made when the width is known."""
        super().__init__(**kwargs)
        self.context = context
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Makes the table, [context, width]."""
        self.table = self.add_weight(
            name="table", shape=(self.context, input_shape[-1]), initializer=_initializer()
        )

    def call(self, inputs: Any) -> Any:
        """Adds the vectors to [batch, time, width]."""
        return inputs + self.table[: keras.ops.shape(inputs)[1]]

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "context": self.context}


def _initializer() -> keras.initializers.Initializer:
    """A normal distribution of deviation 0.02, as both papers' code has it."""
    return keras.initializers.RandomNormal(stddev=0.02)


def _norm(name: str, epsilon: float = 1e-5) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(epsilon=epsilon, name=name)


def _attention(sizes: TransformerSize, dropout: float, name: str) -> keras.layers.Layer:
    return keras.layers.MultiHeadAttention(
        sizes.heads,
        sizes.width // sizes.heads,
        dropout=dropout,
        kernel_initializer=_initializer(),
        name=name,
    )


def _feed_forward(x: Any, sizes: TransformerSize, prefix: str) -> Any:
    """Two dense layers, four times as wide between them."""
    x = keras.layers.Dense(
        4 * sizes.width, "gelu", kernel_initializer=_initializer(), name=f"{prefix}_expand"
    )(x)
    return keras.layers.Dense(
        sizes.width, kernel_initializer=_initializer(), name=f"{prefix}_contract"
    )(x)


def _dropped(x: Any, dropout: float, name: str) -> Any:
    return keras.layers.Dropout(dropout, name=name)(x) if dropout else x


def _name(size: str | TransformerSize, family: str) -> str:
    if not isinstance(size, str):
        return family
    return size if size.startswith(family) else f"{family}_{size}"


def _sizes(
    size: str | TransformerSize, known: Mapping[str, TransformerSize], changes: Mapping[str, Any]
) -> TransformerSize:
    """The sizes that a name or a TransformerSize stands for, with changes.

    Raises:
        ConfigError: the name or a change is unknown.
    """
    if isinstance(size, str):
        if size not in known:
            raise ConfigError(
                explain(
                    f"Unknown size {size!r}", received=f"size={size}", fix=did_you_mean(size, known)
                )
            )
        size = known[size]
    fields = [item.name for item in dataclasses.fields(TransformerSize)]
    for name in changes:
        if name not in fields:
            raise ConfigError(
                explain(
                    f"A transformer has no size `{name}`",
                    received=f"{name}={changes[name]!r}",
                    fix=did_you_mean(name, fields),
                )
            )
    return dataclasses.replace(size, **changes)
