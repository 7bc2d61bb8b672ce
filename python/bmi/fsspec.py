"""The files of a cluster for ``fsspec``: ``pvfs://manager:7000/path``.

So pandas, Dask and PyArrow open them. A manager that is reached otherwise than over TCP is an
option: ``fsspec.filesystem("pvfs", manager="shm:///run/pvfs/manager")``, with paths
``pvfs:///path``.

A file that is written with mode ``wb`` is a draft. It gets its name when it is closed, in one step,
and after a failure it never does. Mode ``r+b`` is not supported: :class:`bmi.files.File` writes in
place.
"""

from __future__ import annotations

import errno
import os
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional
from urllib.parse import urlsplit

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from .files import File, FileSystem

__all__ = ["PvfsFile", "PvfsFileSystem"]


class PvfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of the cluster of ``manager``, or of ``host`` and ``port`` over TCP."""

    protocol = "pvfs"
    root_marker = "/"

    def __init__(
        self,
        manager: Optional[str] = None,
        host: Optional[str] = None,
        port: int = 7000,
        timeout: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        manager = manager or (f"tcp://{host}:{port}" if host else os.environ.get("PVFS_MANAGER"))
        if manager is None:
            raise ValueError("no manager: pvfs://host:port/path, the option manager, or PVFS_MANAGER")
        self.files = FileSystem(manager, timeout=timeout)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith("pvfs://"):
            # What is behind the host is all path: a name may have a `?` or a `#`.
            path = path[len("pvfs://") :].partition("/")[2]
        return "/" + "/".join(name for name in path.split("/") if name)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> Dict[str, Any]:
        url = urlsplit(path) if path.startswith("pvfs://") else urlsplit("")
        found = {"host": url.hostname, "port": url.port}
        return {name: value for name, value in found.items() if value is not None}

    def info(self, path: str, **_: Any) -> Dict[str, Any]:
        return self.files.stat(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> List[Any]:
        path = self._strip_protocol(path)
        try:
            found = self.files.list(path)
        except NotADirectoryError:
            found = [self.files.stat(path)]
        return found if detail else [one["name"] for one in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self._make_parents(path)
        self.files.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.files.mkdir(path, parents=True)

    def rmdir(self, path: str) -> None:
        self.files.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.files.remove(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        if not recursive or maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in self.expand_path(path):
            self.files.remove_all(one)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: Optional[int] = None, **kwargs: Any) -> None:
        names = isinstance(path1, str) and isinstance(path2, str) and not path2.endswith("/")
        if not names or self.isdir(path2) or any(mark in path1 for mark in "*?["):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        self.files.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            self.mkdirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while block := source.read(source.blocksize):
                target.write(block)

    def created(self, path: str) -> datetime:
        raise NotImplementedError("the cluster does not record when a file was created")

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any) -> bytes:
        file = self.files.open(self._strip_protocol(path))
        start, end = start or 0, end
        if start < 0 or end is None or end < 0:
            size = file.size()
            start = max(0, start + size) if start < 0 else start
            end = size if end is None else end + size if end < 0 else end
        return file.read(start, max(0, end - start))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create" and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._make_parents(path)
        draft = self.files.draft(path)
        try:
            if (size := memoryview(value).nbytes) > 0:
                draft.write(0, value)
            draft.publish(size)
        except BaseException:
            draft.abandon()
            raise

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parents(path)
        file = self.files.create(path, exclusive=False)
        if truncate:
            file.truncate(0)

    def _make_parents(self, path: str) -> None:
        """Directories are made as they are needed, as those of object stores are."""
        parent = self._parent(path)
        if parent != "/":
            self.files.mkdir(parent, parents=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> PvfsFile:
        if mode not in ("rb", "wb", "ab", "xb"):
            raise NotImplementedError(f"mode {mode}: bmi.files.File reads and writes in place")
        if mode == "xb" and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return PvfsFile(
            self, path, mode, block_size or "default", autocommit, cache_options=cache_options, **kwargs
        )


class PvfsFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read with a read-ahead, or written block by block."""

    def __init__(self, fs: PvfsFileSystem, path: str, mode: str, *args: Any, **kwargs: Any) -> None:
        #: The file below.
        self.file: Optional[File] = fs.files.open(path) if mode == "rb" else None
        if self.file is not None:
            kwargs.setdefault("size", self.file.size())
        super().__init__(fs, path, mode, *args, **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        assert self.file is not None
        return self.file.read(start, max(0, end - start))

    def _initiate_upload(self) -> None:
        self.fs._make_parents(self.path)
        if self.mode == "ab":
            self.file = self.fs.files.create(self.path, exclusive=False)
            self.end = self.file.size()
        else:
            self.file, self.end = self.fs.files.draft(self.path), 0

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self.file is not None
        with self.buffer.getbuffer() as block:
            if len(block) > 0:
                self.file.write(self.end, block)
            self.end += len(block)
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Gives the file its name."""
        assert self.file is not None
        if self.mode == "ab":
            self.file.sync()
        else:
            self.file.publish(self.end)

    def discard(self) -> None:
        """Removes what was written. What was appended stays."""
        if self.file is not None and self.mode not in ("rb", "ab"):
            self.file.abandon()
