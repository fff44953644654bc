"""Small models of every shape that a splitter meets."""

import keras
from keras import layers


def mlp():
    return keras.Sequential(
        [keras.Input((12,)), *(layers.Dense(16, "relu") for _ in range(4)), layers.Dense(3)],
        name="mlp",
    )


def cnn():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(6, 3, strides=2),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=3),
            layers.Flatten(),
            layers.Dense(3),
        ],
        name="cnn",
    )


def residual():
    """Skips over every operation between, and one from the first layer to the last."""
    x = inputs = keras.Input((8,))
    first = x = layers.Dense(8, name="first")(x)
    for number in range(3):
        y = layers.Dense(8, "tanh", name=f"inner{number}")(x)
        y = layers.Dense(8, name=f"outer{number}")(y)
        x = x + y
    x = layers.Concatenate()([x, first])
    return keras.Model(inputs, layers.Dense(2, name="last")(x), name="residual")


def several():
    """Two inputs of a dict, three outputs in a dict, one of them early, one an input's shadow."""
    a = keras.Input((6,), name="a")
    b = keras.Input((5,), dtype="int32", name="b")
    x = layers.Dense(8, name="left")(a)
    y = layers.Flatten()(layers.Embedding(10, 4, name="right")(b))
    z = layers.Concatenate(name="joined")([x, y])
    z = layers.Dense(7, name="trunk")(z)
    outputs = {
        "early": layers.Dense(1, name="early")(x),
        "late": layers.Dense(2, name="late")(z),
        "mixed": layers.Dense(2, name="mixed")(layers.Concatenate()([z, a])),
    }
    return keras.Model({"a": a, "b": b}, outputs, name="several")


def nested():
    """A Sequential in a functional model in a Sequential; one of them is called twice."""
    block = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, "relu"), layers.BatchNormalization()], name="block"
    )
    x = inputs = keras.Input((8,))
    y = block(x)
    y = keras.ops.tanh(y) + x
    body = keras.Model(inputs, [layers.Dense(8, name="wide")(y), y], name="body")
    x = outer = keras.Input((8,))
    x, y = body(x)
    x = layers.Add()([x, y])
    x = block(x, training=False)
    return keras.Model(outer, layers.Dense(2, name="head")(x), name="nested")


def shared():
    """One tower for two inputs."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    tower, top = layers.Dense(8, "relu", name="tower"), layers.Dense(4, name="top")
    x, y = top(tower(a)), top(tower(b))
    x = layers.Dense(5, name="mixer")(layers.Subtract()([x, y]))
    return keras.Model([a, b], layers.Dense(1, name="head")(x), name="shared")


def masked():
    """Masks cross every cut: an LSTM and an attention heed them."""
    x = inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 8, mask_zero=True)(x)
    x = layers.Dropout(0.0)(x)
    x = layers.LSTM(8, return_sequences=True)(x)
    y = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(x + y)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(2)(x), name="masked")


def transformer():
    from tfdist.models.transformer import gpt

    return gpt("tiny")


BUILDERS = {
    builder.__name__: builder
    for builder in (mlp, cnn, residual, several, nested, shared, masked, transformer)
}
