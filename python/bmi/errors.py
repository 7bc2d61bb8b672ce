"""What can go wrong.

Each class of errors of the transport is one that a program handles differently. Those that Python
has a class for are of that class too: ``except ConnectionRefusedError`` works.

Errors of files are :class:`OSError`, with the error number of Linux: ``FileNotFoundError``,
``FileExistsError``, ``IsADirectoryError`` and so on.
"""

from __future__ import annotations

import errno
from typing import Optional


class Error(Exception):
    """An error of the transport, or one that a handler has raised for its client."""

    #: What failed, such as ``"call"`` or ``"connect"``.
    operation: Optional[str] = None
    #: The address of the peer, if the error concerns one.
    peer: Optional[str] = None
    #: The same call may succeed later.
    retryable: bool = False


class Invalid(Error, ValueError):
    """The arguments are wrong. Do not repeat the call."""


class Unsupported(Error):
    """The backend or the peer cannot do this at all."""


class Incompatible(Error):
    """The peer speaks another version. The text names it."""


class Refused(Error, ConnectionRefusedError):
    """No program listens there, or the peer has rejected the connection."""


class Denied(Error, PermissionError):
    """The peer does not let this side in because of who it is, or this side not the peer."""


class PeerLost(Error, ConnectionResetError):
    """The connection is gone. Repeat what is safe to repeat."""


class TimedOut(Error, TimeoutError):
    """The deadline passed first."""


class Cancelled(Error):
    """This side or the peer has cancelled the operation."""


class Abandoned(Error):
    """The server ended the call without a reply, or its handler raised an exception."""


class TooLarge(Error):
    """The message or the data is longer than a limit. The text names the limit."""


class Busy(Error):
    """The peer has as much to do as it takes on. It has not begun."""


class Exhausted(Error):
    """A limit of this side was reached. Later the call may succeed."""


class Protocol(Error):
    """The peer broke the protocol and was cut off."""


class Io(Error):
    """The operating system or the adapter failed."""


def transport_error(kind: str, text: str, operation: Optional[str], peer: Optional[str], retryable: bool) -> Error:
    """Makes the exception for an error of the transport."""
    error: Error = globals()[kind](text)
    error.operation, error.peer, error.retryable = operation, peer, retryable
    return error


def file_error(number: int, text: str, retryable: bool) -> OSError:
    """Makes the exception for an error of a file."""
    if number == errno.EINVAL:
        # What no path and no layout can be is a wrong argument.
        return InvalidFile(number, text)
    return OSError(number, text)


class InvalidFile(OSError, ValueError):
    """A path, a size or a layout that cannot be."""
