"""Another data set for the tests: three numbers, nothing that could be a label."""

import numpy as np
import tensorflow_datasets as tfds


class TinyRows(tfds.core.GeneratorBasedBuilder):
    """Three numbers."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"number": np.int64})
        )

    def _split_generators(self, dl_manager):
        return {"rows": self._generate_examples()}

    def _generate_examples(self):
        yield from ((number, {"number": number}) for number in range(3))
