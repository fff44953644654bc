"""Checks of Python, the packages, TensorFlow and Keras."""

from __future__ import annotations

from tfdist.doctor.facts import Facts
from tfdist.doctor.findings import Finding

__all__ = [
    "keras_backend",
    "legacy_keras",
    "python",
    "requirements",
    "shadowed_modules",
    "tensorflow",
]

_OLDEST_PYTHON, _FIRST_UNTRIED = (3, 10), (3, 14)


def python(facts: Facts) -> Finding | None:
    """A Python that tfdist has not been made for."""
    version = tuple(int(part) for part in facts.python.split(".")[:2] if part.isdecimal())
    if len(version) < 2 or _OLDEST_PYTHON <= version < _FIRST_UNTRIED:
        return None
    return Finding(
        f"Python {facts.python} is not one that tfdist and TensorFlow 2.21 run on",
        "Make a virtual environment with Python 3.10 to 3.13",
    )


def requirements(facts: Facts) -> Finding | None:
    """Packages that are missing or in another version than tfdist asks for."""
    if not facts.unmet:
        return None
    return Finding(
        f"Packages don't fit tfdist: {'; '.join(facts.unmet)}",
        f"{facts.executable or 'python'} -m pip install "
        + " ".join(f"'{text.partition(' is wanted')[0].replace(' ', '')}'" for text in facts.unmet),
    )


def shadowed_modules(facts: Facts) -> Finding | None:
    """A script of the user's that has the name of a module."""
    if not facts.shadowed:
        return None
    return Finding(
        f"Python imports {', '.join(facts.shadowed)} in the place of the module of that name",
        "Rename it, or start from another folder",
    )


def tensorflow(facts: Facts) -> Finding | None:
    """TensorFlow or Keras that can't be imported, or takes very long to."""
    found = facts.tensorflow
    if found.problem:
        what = "TensorFlow can't be imported" if not found.version else "Keras can't be imported"
        if found.keras:
            what = "TensorFlow can't compute"
        return Finding(
            f"{what}: {found.problem}",
            f"Try `{facts.executable or 'python'} -c 'import tensorflow, keras'`; if it fails alike, "
            "install TensorFlow anew in a fresh virtual environment, and unset XLA_FLAGS and "
            "LD_LIBRARY_PATH; `--timeout` gives a slow machine more time",
        )
    if found.seconds > 60:
        return Finding(
            f"The import of TensorFlow took {found.seconds:.0f} s",
            "Install it on a local disk, not on a network file system; every worker pays this",
            "warning",
        )
    return None


def keras_backend(facts: Facts) -> Finding | None:
    """Keras on JAX or PyTorch."""
    variable = facts.environment.get("KERAS_BACKEND", "tensorflow")
    told = facts.tensorflow.backend
    if variable != "tensorflow":
        return Finding(
            "Keras runs on another backend than TensorFlow, whose strategies can't train it then: "
            f"KERAS_BACKEND={variable}",
            "Set KERAS_BACKEND=tensorflow, or unset it",
        )
    if told and told != "tensorflow":
        return Finding(
            f"Keras runs on the backend {told}, which keras.json says",
            'Set "backend": "tensorflow" in ~/.keras/keras.json, or KERAS_BACKEND=tensorflow',
        )
    return None


def legacy_keras(facts: Facts) -> Finding | None:
    """`tf.keras` as Keras 2, whose models tfdist's strategies don't know."""
    value = facts.environment.get("TF_USE_LEGACY_KERAS", "")
    if value.strip().lower() not in ("1", "true"):
        return None
    version = facts.packages.get("tf-keras", "not installed")
    return Finding(
        f"tf.keras is Keras 2 (tf-keras {version}): TF_USE_LEGACY_KERAS={value}. tfdist trains models "
        "of Keras 3, `import keras`",
        "Unset TF_USE_LEGACY_KERAS, or keep `tf.keras` out of the script",
    )
