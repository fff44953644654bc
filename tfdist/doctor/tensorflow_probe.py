"""Run as a program: prints what TensorFlow and Keras say of themselves, as a line of JSON.

It is a process of its own because an import of TensorFlow can crash (an unknown XLA flag, a processor
without AVX, a broken driver) or hang. No memory of a GPU is taken: devices are listed, not used.
"""

from __future__ import annotations

import json
import time
from typing import Any

__all__ = ["MARK", "main"]

MARK = "tfdist-doctor-tensorflow:"


def main() -> None:
    """Prints the facts behind a mark: libraries print lines of their own."""
    begin = time.monotonic()
    import tensorflow as tf

    seconds = time.monotonic() - begin
    facts: dict[str, Any] = {"version": tf.__version__, "seconds": round(seconds, 1)}
    _tell(facts)  # What is known so far counts even if the rest crashes.
    facts["built_with_cuda"] = bool(tf.test.is_built_with_cuda())
    facts["cuda"] = str(tf.sysconfig.get_build_info().get("cuda_version", ""))
    facts["gpus"] = [_gpu(device) for device in tf.config.list_physical_devices("GPU")]
    facts["tpus"] = len(tf.config.list_physical_devices("TPU"))
    _tell(facts)
    import keras

    facts["keras"] = keras.__version__
    facts["backend"] = keras.config.backend()
    _tell(facts)
    facts["keras_of_tensorflow"] = str(getattr(tf.keras, "__version__", ""))
    _tell(facts)
    # Wrong XLA_FLAGS and some processors end a process only now. No memory of a GPU is taken.
    tf.config.set_visible_devices([], "GPU")
    facts["computes"] = int(tf.function(lambda x: x + x, jit_compile=True)(tf.constant(1))) == 2
    _tell(facts)


def _gpu(device: Any) -> str:
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(device)
    capability = ".".join(map(str, details.get("compute_capability") or ()))
    return f"{details.get('device_name', device.name)} (compute capability {capability or '?'})"


def _tell(facts: dict[str, Any]) -> None:
    print(f"\n{MARK}{json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
