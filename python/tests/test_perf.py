"""What `bmi-perf` runs to measure this package prints a figure, and its server ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("size", ["8", "65536"])
@pytest.mark.parametrize("test", ["latency", "rate"])
def test_a_figure_is_printed(test: str, size: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bmi.perf", test, "shm", size, "4", "40"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    server = subprocess.Popen(command, env=env)
    try:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        printed = subprocess.run([*command, "127.0.0.1"], env=env, check=True, timeout=60, stdout=subprocess.PIPE)
        assert float(printed.stdout) > 0
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    assert not list(tmp_path.iterdir())
