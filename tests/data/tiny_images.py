"""A data set for the tests: what TFDS offers, without a network."""

import os
import time

import numpy as np
import tensorflow_datasets as tfds


class TinyImages(tfds.core.GeneratorBasedBuilder):
    """Twenty images of 4x4 pixels, image n filled with n; TINY_IMAGES_PAUSE slows each down."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(4, 4, 3), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=5),
                    "name": tfds.features.Text(),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(20)}

    def _generate_examples(self, count):
        for number in range(count):
            time.sleep(float(os.environ.get("TINY_IMAGES_PAUSE", "0")))
            image = np.full((4, 4, 3), number, np.uint8)
            yield number, {"image": image, "label": number % 5, "name": f"image {number}"}
