"""The transport and the files for ``asyncio``.

The classes are those of :mod:`bmi` and :mod:`bmi.files`. A task that is cancelled, for instance by
``asyncio.wait_for``, cancels its operation. Memory that the operation has used is kept until the
transport has let go of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Optional, Sequence, Set, Union
from weakref import WeakKeyDictionary

import bmi
from bmi import Buffer, Replied, Reply, _native

__all__ = ["Call", "Client", "Handler", "Server"]

_drivers: WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Driver] = WeakKeyDictionary()


def _driver(loop: asyncio.AbstractEventLoop) -> _native.Driver:
    driver = _drivers.get(loop)
    if driver is None:
        driver = _drivers[loop] = _native.Driver()
        loop.add_reader(driver.fileno(), driver.run)
    return driver


async def run(method: Callable[..., Any], *args: Any) -> Any:
    """Runs a method of the extension under the loop."""
    loop = asyncio.get_running_loop()
    driver, future = _driver(loop), loop.create_future()
    key = method((driver, future), *args)
    try:
        return await future
    except BaseException:
        driver.cancel(key)
        raise


class Client:
    """A client of a service, as :class:`bmi.Client`."""

    def __init__(self, addrs: Union[str, Sequence[str]], **settings: Any) -> None:
        self._native = _native.Client([addrs] if isinstance(addrs, str) else addrs, **settings)

    async def call(
        self,
        request: bytes,
        *,
        data: Optional[Buffer] = None,
        into: Optional[Buffer] = None,
        timeout: Optional[float] = None,
        idempotent: bool = False,
    ) -> Reply:
        """Makes a call, as :meth:`bmi.Client.call`."""
        return Reply(*await run(self._native.call, request, data, into, timeout, idempotent))

    async def connect(self) -> None:
        """Connects, to find out early whether the service is there."""
        await run(self._native.connect)

    async def close(self) -> None:
        """Ends all connections and all calls in flight."""
        await run(self._native.close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Call:
    """A call that a client has made, as :class:`bmi.Call`."""

    def __init__(self, native: _native.Call) -> None:
        self._native = native

    @property
    def request(self) -> bytes:
        """The request."""
        return self._native.request

    @property
    def peer(self) -> Optional[str]:
        """The address of the client, if it has one."""
        return self._native.peer

    @property
    def data_len(self) -> int:
        """The length of the data that came with the request."""
        return self._native.data_len

    async def data(self) -> bytes:
        """Returns the data that came with the request."""
        result: bytes = await run(self._native.data)
        return result

    async def data_into(self, into: Buffer) -> None:
        """Copies the beginning of the data into a buffer, until that is full."""
        await run(self._native.data_into, into)


Handler = Callable[[Call], Awaitable[Replied]]


class Server:
    """A server of calls, as :class:`bmi.Server`."""

    def __init__(self, addrs: Union[str, Sequence[str]], **settings: Any) -> None:
        self._native = _native.Server([addrs] if isinstance(addrs, str) else addrs, **settings)

    @property
    def addrs(self) -> list[str]:
        """The addresses, with the ports that were taken."""
        return self._native.addrs

    async def serve(self, handler: Handler) -> None:
        """Runs ``handler`` for each call, in a task of its own, until :meth:`shutdown`.

        When this is cancelled, so are the handlers.
        """
        tasks: Set[asyncio.Task[None]] = set()
        try:
            while (call := await run(self._native.next)) is not None:
                task = asyncio.create_task(_handle(handler, call))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def shutdown(self, limit: float = 10.0) -> None:
        """Takes no more calls, and waits for those that have begun, ``limit`` seconds at most."""
        await run(self._native.shutdown, limit)

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


async def _handle(handler: Handler, call: _native.Call) -> None:
    try:
        await run(call.reply, *bmi.parts(await handler(Call(call))))
    except Exception as error:
        bmi.fail(call, error)
    except BaseException as error:
        call.fail(error)
        raise
