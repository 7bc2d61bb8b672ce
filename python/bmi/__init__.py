"""Calls of a storage transport, over TCP, RDMA verbs and shared memory.

A call is a request, data in one direction, and a reply. The address selects the transport:
``tcp://host:port``, ``shm:///path``, ``ib://device/host:port``.

Here every method blocks its thread, with the interpreter's lock released. :mod:`bmi.aio` has the
same for ``asyncio``, :mod:`bmi.files` the files of a cluster, and :mod:`bmi.fsspec` these for
``fsspec``.

**Memory.** Whatever has contiguous bytes can be sent, and what can be written can be received into,
without a copy: ``bytes``, ``bytearray``, ``memoryview``, arrays of NumPy. Until the call has ended,
do not write what is sent, and do not touch what is received into. If the call was interrupted or
cancelled, the memory is kept until the transport has let go of it.
"""

from __future__ import annotations

import builtins
import threading
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple, Union

from . import _native, errors
from .errors import Error

__all__ = ["Call", "Client", "Error", "Handler", "Reply", "Replied", "Server", "errors"]

#: An object with the buffer protocol. ``collections.abc.Buffer`` names it from Python 3.12 on.
Buffer = Any
#: What a handler returns: the reply, or the reply and data.
Replied = Union[bytes, Tuple[bytes, Buffer]]


class Reply(NamedTuple):
    """The reply to a call."""

    #: The handler's reply.
    bytes: builtins.bytes
    #: The data. Empty if the call had a buffer for it.
    data: builtins.bytes
    #: The length of the data.
    data_len: int


class Client:
    """A client of a service. It connects when a call needs it, and again.

    ``addrs`` is an address, or several of which the first that answers is used. Any thread may use
    it. A child of a fork may not: it makes its own.

    :param timeout: time for a call that does not set its own, in seconds
    :param max_calls: calls in flight at a time; further ones wait
    :param max_reply: longest data of a reply, in bytes
    :param max_bytes: bytes of long replies that are received at a time
    :param offer: memory that a call offers for the data of its reply, in bytes; longer data takes
        one more round trip, until a call offers as much as the last ones had
    :param spread: use all addresses in turn
    :param protocol: version of the program's protocol; a server of another one refuses
    """

    def __init__(self, addrs: Union[str, Sequence[str]], **settings: Any) -> None:
        self._native = _native.Client([addrs] if isinstance(addrs, str) else addrs, **settings)

    def call(
        self,
        request: bytes,
        *,
        data: Optional[Buffer] = None,
        into: Optional[Buffer] = None,
        timeout: Optional[float] = None,
        idempotent: bool = False,
    ) -> Reply:
        """Makes a call, and waits for its reply.

        :param request: at most some 8,000 bytes; everything longer is data
        :param data: data for the server
        :param into: where the data of the reply goes
        :param timeout: time for this call, in seconds
        :param idempotent: the server may do twice what this asks for; the client then repeats it
            if it does not know whether it was done
        """
        return Reply(*self._native.call(None, request, data, into, timeout, idempotent))

    def connect(self) -> None:
        """Connects, to find out early whether the service is there."""
        self._native.connect(None)

    def close(self) -> None:
        """Ends all connections and all calls in flight."""
        self._native.close(None)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Call:
    """A call that a client has made. A handler has it until it returns."""

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

    def data(self) -> bytes:
        """Returns the data that came with the request."""
        result: bytes = self._native.data(None)
        return result

    def data_into(self, into: Buffer) -> None:
        """Copies the beginning of the data into a buffer, until that is full."""
        self._native.data_into(None, into)


Handler = Callable[[Call], Replied]


class Server:
    """A server of calls, which accepts connections from now on.

    Port 0 means any free port, see :attr:`addrs`.

    :param max_calls: calls that are handled or wait for a thread, at a time
    :param max_waiting: calls that wait behind these; further ones end with ``Busy``
    :param max_data: longest data of a call, in bytes
    :param max_bytes: bytes of data that handlers have at a time
    :param protocol: version of the program's protocol
    """

    def __init__(self, addrs: Union[str, Sequence[str]], **settings: Any) -> None:
        self._native = _native.Server([addrs] if isinstance(addrs, str) else addrs, **settings)

    @property
    def addrs(self) -> list[str]:
        """The addresses, with the ports that were taken."""
        return self._native.addrs

    def serve(self, handler: Handler, *, threads: int = 1) -> None:
        """Runs ``handler`` for each call, on this thread and ``threads - 1`` others, until
        :meth:`shutdown`.

        The handler returns the reply, or the reply and data. If it raises an error of
        :mod:`bmi.errors`, the client gets the same. Any other exception is reported by
        :func:`sys.unraisablehook`, and the client gets ``Abandoned`` with its text.
        """
        others = [threading.Thread(target=self._serve, args=(handler,), daemon=True) for _ in range(threads - 1)]
        for other in others:
            other.start()
        self._serve(handler)
        for other in others:
            other.join()

    def _serve(self, handler: Handler) -> None:
        while (call := self._native.next(None)) is not None:
            try:
                call.reply(None, *parts(handler(Call(call))))
            except Exception as error:
                fail(call, error)
            except BaseException as error:
                call.fail(error)
                raise

    def shutdown(self, limit: float = 10.0) -> None:
        """Takes no more calls, and waits for those that have begun, ``limit`` seconds at most."""
        self._native.shutdown(None, limit)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def parts(replied: Replied) -> Tuple[bytes, Optional[Buffer]]:
    """Returns the reply and the data of what a handler has returned."""
    return replied if isinstance(replied, tuple) else (replied, None)


def fail(call: _native.Call, error: Exception) -> None:
    """Ends a call with what its handler has raised."""
    # It is reported when the client learns of it.
    if not isinstance(error, Error):
        _native.report(error)
    call.fail(error)
