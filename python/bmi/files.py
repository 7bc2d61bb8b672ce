"""The files of a cluster. :mod:`bmi.fsspec` has the same for ``fsspec``.

Errors are :class:`OSError`, with the error number of Linux. Every method blocks its thread, with
the interpreter's lock released. What is said of memory in :mod:`bmi` applies here too.
"""

from __future__ import annotations

import uuid
from typing import Any, Dict, List

from . import Buffer, _native

__all__ = ["File", "FileSystem"]


class FileSystem:
    """The files of the cluster whose manager listens at ``manager``, such as ``tcp://host:7000``.

    It connects with its first operation. Paths begin with ``/``; names that are no UTF-8 are text
    as :func:`os.fsdecode` makes it. Any thread may use it. A child of
    a fork may not: it makes its own.

    :param timeout: time limit of a single request, in seconds
    :param retry_for: time for a server to come back, in seconds
    """

    def __init__(self, manager: str, *, timeout: float = 30.0, retry_for: float = 5.0) -> None:
        self._native = _native.Cluster(manager, uuid.uuid4().int, timeout, retry_for)

    def stat(self, path: str) -> Dict[str, Any]:
        """Returns ``name``, ``type`` (``"file"``, ``"directory"`` or ``"link"``), ``size``,
        ``mode``, ``uid``, ``gid`` and ``mtime`` of a path."""
        result: Dict[str, Any] = self._native.stat(None, path)
        return result

    def list(self, path: str) -> List[Dict[str, Any]]:
        """Returns what :meth:`stat` does, for all that is in a directory."""
        result: List[Dict[str, Any]] = self._native.list(None, path)
        return result

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Creates a directory. With ``parents``, also those above it, and none if it exists."""
        self._native.mkdir(None, path, parents)

    def remove(self, path: str) -> None:
        """Removes a file."""
        self._native.remove(None, path, "file")

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self._native.remove(None, path, "dir")

    def remove_all(self, path: str) -> None:
        """Removes a file, or a directory with everything below it."""
        self._native.remove(None, path, "all")

    def rename(self, old: str, new: str) -> None:
        """Moves a name. A file or an empty directory at ``new`` is replaced."""
        self._native.rename(None, old, new)

    def open(self, path: str) -> File:
        """Opens a file, for reads and writes."""
        return File(self._native.open(None, path))

    def create(self, path: str, *, exclusive: bool = True, strip_size: int = 0, servers: int = 0) -> File:
        """Creates a file and opens it. Its name leads to it at once.

        :param exclusive: a file that exists is an error; otherwise it is opened
        :param strip_size: bytes on one server before the next one's turn; 0 for the default
        :param servers: servers to stripe over; 0 for all that are up
        """
        return File(self._native.create(None, path, exclusive, False, strip_size, servers))

    def draft(self, path: str, *, strip_size: int = 0, servers: int = 0) -> File:
        """Creates a file without a name. :meth:`File.publish` gives it the name ``path``, and
        replaces a file that is there, in one step."""
        return File(self._native.create(None, path, False, True, strip_size, servers))


class File:
    """A file that is open. There is nothing to close: it has no state at the servers."""

    def __init__(self, native: _native.File) -> None:
        self._native = native

    @property
    def path(self) -> str:
        """The path that it was opened by."""
        return self._native.path

    def read(self, offset: int, length: int) -> bytes:
        """Returns ``length`` bytes from ``offset`` on, or as many as there are."""
        result: bytes = self._native.read(None, offset, length)
        return result

    def read_into(self, offset: int, into: Buffer) -> int:
        """Fills a buffer from ``offset`` on. Returns how many of the bytes are before the end of
        the file. The others are zero."""
        result: int = self._native.read_into(None, offset, into)
        return result

    def write(self, offset: int, data: Buffer) -> None:
        """Writes at ``offset``."""
        self._native.write(None, offset, data)

    def size(self) -> int:
        """Returns the size in bytes."""
        result: int = self._native.size(None)
        return result

    def truncate(self, size: int) -> None:
        """Sets the size in bytes."""
        self._native.truncate(None, size)

    def sync(self) -> None:
        """Waits until what was written is on the servers' disks."""
        self._native.sync(None)

    def publish(self, size: int) -> None:
        """Syncs a draft, whose complete size is ``size``, and gives it its name."""
        self._native.publish(None, size)

    def abandon(self) -> None:
        """Removes a draft."""
        self._native.abandon(None)
