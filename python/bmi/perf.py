"""What ``bmi-perf --peers python`` runs: ``bmi-perf-python TEST OVER SIZE DEPTH COUNT [HOST]``.

Without a host it serves one client, and ends with it. The client prints half the round trip of a
call in microseconds (``latency``), or calls per second with DEPTH of them in flight (``rate``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from typing import Optional, Sequence

import bmi
from bmi import aio

PORT = 13377
# Longer messages travel as the data of a call.
LONGEST_REQUEST = 4096
END = b"end"


# Where the socket of shared memory is.
FOLDER = f"{tempfile.gettempdir()}/bmi-perf-python-{os.getuid()}"


def address(over: str, host: str) -> str:
    """Returns where the server listens."""
    return f"shm://{FOLDER}/socket" if over == "shm" else f"tcp://{host}:{PORT}"


def serve(at: str) -> None:
    """Echoes requests and data, until it is told to end."""
    with bmi.Server(at, max_calls=256) as server:

        def handle(call: bmi.Call) -> bmi.Replied:
            if call.request == END:
                threading.Thread(target=server.shutdown).start()
            return call.request, call.data()

        server.serve(handle)


def latency(at: str, request: bytes, data: Optional[bytes], count: int) -> float:
    times = []
    with bmi.Client(at) as client:
        for _ in range(count):
            begin = time.perf_counter()
            client.call(request, data=data)
            times.append(time.perf_counter() - begin)
    return statistics.median(times) / 2 * 1e6


async def rate(at: str, request: bytes, data: Optional[bytes], count: int, depth: int) -> float:
    async with aio.Client(at) as client:

        async def some() -> None:
            for _ in range(count // depth):
                await client.call(request, data=data)

        await some()
        begin = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(depth)))
        return count // depth * depth / (time.perf_counter() - begin)


def main(args: Optional[Sequence[str]] = None) -> None:
    test, over, size, depth, count, *host = sys.argv[1:] if args is None else args
    at = address(over, host[0] if host else "127.0.0.1")
    if not host:
        serve(at)
        if over == "shm":
            shutil.rmtree(FOLDER, ignore_errors=True)
        return
    is_long = int(size) > LONGEST_REQUEST
    request, data = (b"long", bytes(int(size))) if is_long else (bytes(int(size)), None)
    if test == "latency":
        print(f"{latency(at, request, data, int(count)):.2f}")
    else:
        print(f"{asyncio.run(rate(at, request, data, int(count), int(depth))):.0f}")
    with bmi.Client(at) as client:
        client.call(END)
    # Whoever has started the server may end it now: until it has tidied up, a second at most.
    for _ in range(100):
        if over == "shm" and os.path.exists(FOLDER):
            time.sleep(0.01)


if __name__ == "__main__":
    main()
