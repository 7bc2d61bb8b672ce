"""Calls under asyncio."""

import asyncio
import os
import sys
from typing import Any, Coroutine, List

import bmi
import pytest
from bmi import aio, errors


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_many_calls_at_a_time(server: bmi.Server) -> None:
    async def test() -> None:
        async with aio.Client(server.addrs) as client:
            calls = [client.call(str(n).encode(), data=bytes(n)) for n in range(300)]
            for n, reply in enumerate(await asyncio.gather(*calls)):
                assert reply == bmi.Reply(str(n).encode(), bytes(n), n)

    run(test())


def test_buffers_are_the_programs_again_after_each_call(addr: str) -> None:
    async def handler(call: aio.Call) -> bmi.Replied:
        into = bytearray(call.data_len)
        await call.data_into(into)
        into.append(1)
        return b"", bytes(int(call.request))

    async def test() -> None:
        async with aio.Server(addr) as server, aio.Client(server.addrs) as client:
            serving = asyncio.create_task(server.serve(handler))
            for length in (1, 4096, 65536, 1_000_000) * 10:
                data, into = bytearray(length), bytearray(length)
                await client.call(b"0", data=data)
                data.append(1)
                await client.call(b"%d" % length, into=into)
                into.append(1)
            await server.shutdown()
            await serving

    run(test())


def test_a_task_that_is_cancelled_drops_its_call() -> None:
    async def test() -> None:
        async with aio.Server("tcp://127.0.0.1:0") as server, aio.Client(server.addrs, max_calls=1) as client:
            arrived, cancelled = asyncio.Event(), asyncio.Event()

            async def handler(call: aio.Call) -> bmi.Replied:
                if call.request == b"wait":
                    arrived.set()
                    await cancelled.wait()
                return call.request, await call.data()

            serving = asyncio.create_task(server.serve(handler))
            into = bytearray(1_000_000)
            waits = asyncio.create_task(client.call(b"wait", into=into, timeout=60))
            await arrived.wait()
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            # The server may still write to it.
            with pytest.raises(BufferError):
                into.append(1)
            # The client makes one call at a time: the one that was cancelled is over.
            assert (await client.call(b"next", data=b"data")).data == b"data"
            cancelled.set()
            await server.shutdown()
            await serving
            # And its memory is free at the latest when its server has ended.
            await client.close()
            into.append(1)

    run(test())


def test_what_a_handler_raises_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: List[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    async def handler(call: aio.Call) -> bmi.Replied:
        if call.request == b"bug":
            raise KeyError("no such key")
        raise errors.Invalid("not so")

    async def test() -> None:
        async with aio.Server("tcp://127.0.0.1:0") as server, aio.Client(server.addrs) as client:
            serving = asyncio.create_task(server.serve(handler))
            with pytest.raises(errors.Abandoned, match="no such key"):
                await client.call(b"bug")
            with pytest.raises(ValueError, match="not so"):
                await client.call(b"")
            serving.cancel()

    run(test())
    assert len(reported) == 1


def test_the_loop_is_woken_once_for_many_completions() -> None:
    async def test() -> None:
        async with aio.Server("tcp://127.0.0.1:0") as server:
            driver = aio._driver(asyncio.get_running_loop())
            waits = [asyncio.create_task(aio.run(server._native.next)) for _ in range(50)]
            await asyncio.sleep(0)
            # All end on this thread, while the loop does not run.
            server._native.shutdown(None, 0.0)
            # The descriptor counts what was written to it.
            assert os.read(driver.fileno(), 8) == (1).to_bytes(8, sys.byteorder)
            driver.run()
            assert await asyncio.gather(*waits) == [None] * 50

    run(test())


def test_a_second_loop_has_its_own_driver(server: bmi.Server) -> None:
    client = aio.Client(server.addrs)

    async def test() -> None:
        assert (await client.call(b"again")).bytes == b"again"

    run(test())
    run(test())
