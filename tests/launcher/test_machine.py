import os
from pathlib import Path

import pytest

from tfdist.launcher import machine


def test_this_machine():
    found = machine.detect({})
    assert 1 <= found.cores <= (os.cpu_count() or 1)


def dev(folder: Path, count: int) -> Path:
    for number in range(count):
        (folder / f"nvidia{number}").touch()
    for other in ("nvidiactl", "nvidia-uvm", "null"):
        (folder / other).touch()
    return folder


@pytest.mark.parametrize(
    ("there", "visible", "found"),
    [
        (0, None, ""),
        (0, "0,1", ""),
        (12, None, "0,1,2,3,4,5,6,7,8,9,10,11"),
        (4, "3,1", "3,1"),
        (4, "GPU-5ebe,GPU-77aa", "GPU-5ebe,GPU-77aa"),
        (4, "", ""),
        (4, "-1", ""),
        (4, "0,-1,2", "0"),
    ],
)
def test_gpus(tmp_path, there, visible, found):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    gpus = machine._gpus(environ, dev(tmp_path, there))
    assert ",".join(gpus) == found


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_the_limit_of_a_container(tmp_path, files, cores):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine._quota(tmp_path) == cores
