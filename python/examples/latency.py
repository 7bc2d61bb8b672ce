"""Measures a call from Python: blocking, and under asyncio. `python examples/latency.py`."""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time

import bmi
from bmi import aio

COUNT = 3000


def serve(at: str) -> None:
    """Echoes requests and data, and prints where it listens."""
    server = bmi.Server(at)
    print(server.addrs[0], flush=True)
    server.serve(lambda call: (call.request, call.data()))


def median(times: "list[float]") -> str:
    return f"{statistics.median(times) * 1e6:7.1f}"


async def under_asyncio(addr: str, request: bytes, data: bytes) -> "list[float]":
    times = []
    async with aio.Client(addr) as client:
        for _ in range(COUNT):
            begin = time.perf_counter()
            await client.call(request, data=data or None)
            times.append(time.perf_counter() - begin)
    return times


def blocking(addr: str, request: bytes, data: bytes) -> "list[float]":
    times = []
    with bmi.Client(addr) as client:
        for _ in range(COUNT):
            begin = time.perf_counter()
            client.call(request, data=data or None)
            times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for at in "tcp://127.0.0.1:0", f"shm://{folder}/socket":
            server = subprocess.Popen([sys.executable, __file__, at], stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            addr = server.stdout.readline().strip()
            for size in (8, 4096, 65536):
                # A short request travels by itself, a long one as data.
                request, data = (bytes(size), b"") if size <= 4096 else (b"", bytes(size))
                times = blocking(addr, request, data), asyncio.run(under_asyncio(addr, request, data))
                print(f"{addr[:3]} {size:6} B   blocking {median(times[0])} us   asyncio {median(times[1])} us")
            server.kill()
            server.wait()


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) > 1 else main()
