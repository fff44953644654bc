"""Trains one epoch with the installed wheel: `python installed.py FOLDER` of its environment."""

import sys
from pathlib import Path

import keras

import tfdist
import tfdist.models
import tfdist.strategies

home = Path(sys.argv[1]).resolve()
for package in (tfdist, tfdist.strategies, tfdist.models):
    assert home in Path(str(package.__file__)).resolve().parents, f"{package} is not the wheel's"

runtime = tfdist.create(strategy="mirrored", devices="cpu:2", global_batch_size=64, seed=0)

with runtime.scope():
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(runtime.dataset("digits", split="train"), epochs=1, verbose=0)
print("the wheel trains: loss", history.history["loss"][0])
