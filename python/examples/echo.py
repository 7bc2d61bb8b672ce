"""A server that stores a block, and a client: `python examples/echo.py`."""

import asyncio
import threading

import bmi
from bmi import aio

block = b""


def handle(call: bmi.Call) -> bmi.Replied:
    global block
    if call.request == b"write":
        block = call.data()
        return b"written"
    if call.request == b"read":
        return b"read", block
    raise bmi.errors.Invalid("unknown request")


async def read_soon(addr: str) -> None:
    async with aio.Client(addr) as client:
        reply = await asyncio.wait_for(client.call(b"read"), timeout=5)
        print(reply.bytes, reply.data)


with bmi.Server("tcp://127.0.0.1:0") as server:
    threading.Thread(target=server.serve, args=(handle,), daemon=True).start()
    with bmi.Client(server.addrs) as client:
        client.call(b"write", data=b"Hello, block!")
        into = bytearray(13)
        client.call(b"read", into=into)
        print(into)
    asyncio.run(read_soon(server.addrs[0]))
