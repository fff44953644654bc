import pytest

from tfdist.errors import LaunchError
from tfdist.launcher import LaunchSpec
from tfdist.launcher.spec import parse_assignments


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"command": ()}, ["no program"]),
        ({"num_workers": 0}, ["at least 1", "0", "-n"]),
        ({"num_workers": -3}, ["-3"]),
        ({"devices_per_worker": 0}, ["--devices-per-worker", "0"]),
        ({"start_timeout": 0.0}, ["--start-timeout"]),
        ({"start_timeout": float("nan")}, ["--start-timeout", "nan"]),
        ({"start_timeout": float("inf")}, ["--start-timeout", "inf"]),
        ({"grace": -1.0}, ["--grace", "-1"]),
        ({"grace": float("nan")}, ["--grace", "nan"]),
        ({"env": {"TF_CONFIG": "{}"}}, ["--env", "TF_CONFIG"]),
        ({"env": {"TFDIST_RANK": "0"}}, ["TFDIST_RANK"]),
    ],
)
def test_what_cannot_be_started_is_refused(settings, words):
    with pytest.raises(LaunchError) as error:
        LaunchSpec(**{"command": ("true",), "num_workers": 2, **settings})
    for word in words:
        assert word in str(error.value)


def test_assignments():
    assert parse_assignments(["A=1", "B=x=y", "C=", "A=2"]) == {"A": "2", "B": "x=y", "C": ""}


@pytest.mark.parametrize("text", ["A", "=1", "", "A=\0"])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(LaunchError, match="NAME=VALUE"):
        parse_assignments([text])
