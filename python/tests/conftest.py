"""A server that echoes, a cluster, and a limit for every test."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator, List

import bmi
import pytest

KINDS = ("passed", "failed", "error", "skipped")


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A test that hangs ends the run, with the stacks of all threads."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def echo(call: bmi.Call) -> bmi.Replied:
    """Returns the request and the data; or raises what the request says."""
    if call.request == b"busy":
        raise bmi.errors.Busy("come back later")
    if call.request == b"bug":
        raise KeyError("no such key")
    if call.request.startswith(b"make "):
        return b"made", bytes(int(call.request[5:]))
    return call.request, call.data()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the totals in the form that `cargo xtask test` reads."""
    passed, failed, errors, skipped = (len(terminalreporter.stats.get(one, [])) for one in KINDS)
    terminalreporter.write_line(f"test result: {passed} passed; {failed + errors} failed; {skipped} ignored")


@pytest.fixture(params=["tcp", "shm"])
def addr(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"shm://{tmp_path}/socket"


@pytest.fixture
def server(addr: str) -> Iterator[bmi.Server]:
    server = bmi.Server(addr)
    serving = threading.Thread(target=server.serve, args=(echo,), kwargs={"threads": 2})
    serving.start()
    yield server
    server.shutdown(1.0)
    serving.join()


@pytest.fixture
def client(server: bmi.Server) -> Iterator[bmi.Client]:
    with bmi.Client(server.addrs) as client:
        yield client


@pytest.fixture(scope="session")
def manager() -> Iterator[str]:
    """The manager's address of a cluster that ends with the tests."""
    # The command is a shell that says where the cluster is, and waits for the end of its input.
    command: List[str] = [os.environ["PVFSD"], "scratch", "--", "sh", "-c", "echo addr=$PVFS_MANAGER; read _"]
    cluster = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert cluster.stdin is not None and cluster.stdout is not None
    addr = next(line[5:].strip() for line in cluster.stdout if line.startswith("addr="))
    yield addr
    cluster.stdin.close()
    cluster.wait(60)
