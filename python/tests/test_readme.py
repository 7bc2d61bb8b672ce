"""The examples of the README and of `examples/` run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_readme_runs(block: str, manager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVFS_MANAGER", manager)
    register = 'import fsspec; fsspec.register_implementation("pvfs", "bmi.fsspec.PvfsFileSystem")\n'
    subprocess.run([sys.executable, "-c", register + block], check=True, timeout=60)


def test_the_example_runs() -> None:
    subprocess.run([sys.executable, str(ROOT / "examples/echo.py")], check=True, timeout=60)
