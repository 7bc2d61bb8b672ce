"""Files of a cluster, by themselves and through fsspec with its own abstract tests."""

from __future__ import annotations

import errno
import os
import uuid
from typing import Any, Callable, Iterator, List, Tuple, Type

import bmi.fsspec
import fsspec
import fsspec.tests.abstract as abstract
import pytest
from bmi.files import FileSystem

# As the entry point does, once the package is installed.
fsspec.register_implementation("pvfs", "bmi.fsspec.PvfsFileSystem")


@pytest.fixture
def files(manager: str) -> FileSystem:
    return FileSystem(manager)


@pytest.fixture
def folder(files: FileSystem) -> Iterator[str]:
    folder = f"/{uuid.uuid4()}"
    files.mkdir(folder)
    yield folder
    files.remove_all(folder)


def test_a_file_is_written_and_read_in_place(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/a")
    data = os.urandom(1_000_000)
    file.write(100, data)
    assert file.size() == 1_000_100
    assert files.open(f"{folder}/a").read(0, 2_000_000) == bytes(100) + data
    into = bytearray(2_000_000)
    assert file.read_into(1_000_000, into) == 100
    assert into == data[-100:] + bytes(1_999_900)
    file.truncate(10)
    file.sync()
    assert file.read(5, 10) == bytes(5) and file.read(20, 10) == b""
    assert files.stat(f"{folder}/a")["size"] == 10


def test_buffers_are_the_programs_again_after_reads_and_writes(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/a")
    for length in (1, 4096, 1_000_000) * 10:
        data, into = bytearray(length), bytearray(length)
        file.write(0, data)
        data.append(1)
        file.read_into(0, into)
        into.append(1)


def test_names_are_bytes(files: FileSystem, folder: str) -> None:
    name = f"{folder}/{os.fsdecode(bytes([0xff]))}é"
    assert files.create(name).path == name
    assert [one["name"] for one in files.list(folder)] == [name]
    files.remove(name)


def test_a_draft_replaces_a_file_in_one_step(files: FileSystem, folder: str) -> None:
    files.create(f"{folder}/a").write(0, b"old")
    draft = files.draft(f"{folder}/a")
    draft.write(0, b"newer")
    assert files.open(f"{folder}/a").read(0, 9) == b"old"
    draft.publish(5)
    assert files.open(f"{folder}/a").read(0, 9) == b"newer"
    with pytest.raises(RuntimeError):
        draft.publish(5)
    files.draft(f"{folder}/b").abandon()
    assert [one["name"] for one in files.list(folder)] == [f"{folder}/a"]


def test_errors_are_those_of_the_system(files: FileSystem, folder: str) -> None:
    files.create(f"{folder}/a")
    cases: List[Tuple[Type[Exception], Callable[[], object]]] = [
        (FileNotFoundError, lambda: files.open(f"{folder}/none")),
        (FileExistsError, lambda: files.create(f"{folder}/a")),
        (FileExistsError, lambda: files.mkdir(folder)),
        (NotADirectoryError, lambda: files.list(f"{folder}/a")),
        (IsADirectoryError, lambda: files.open(folder)),
        (ValueError, lambda: files.stat("no path")),
    ]
    for kind, work in cases:
        with pytest.raises(kind):
            work()
    with pytest.raises(OSError) as failed:
        files.rmdir(folder)
    assert failed.value.errno == errno.ENOTEMPTY


def test_fsspec_opens_a_url(manager: str, folder: str) -> None:
    url = manager.replace("tcp://", "pvfs://") + folder
    with fsspec.open(f"{url}/deep/a.txt", "w") as file:
        file.write("one\n" * 3)
    with fsspec.open(f"{url}/deep/a.txt", "a") as file:
        file.write("two\n")
    fs, path = fsspec.core.url_to_fs(f"{url}/deep/a.txt")
    assert fs.cat_file(path, 4, -4) == b"one\none\n" and fs.tail(path, 4) == b"two\n"
    assert fs.glob(f"{url}/**/*.txt") == [path]
    fs.mv(path, path + ".old")
    assert not fs.exists(path) and fs.size(path + ".old") == 16


def test_what_was_not_closed_or_committed_has_no_name(manager: str, folder: str) -> None:
    fs = fsspec.filesystem("pvfs", manager=manager)
    with pytest.raises(KeyError), fs.transaction:
        with fs.open(f"{folder}/a", "wb") as file:
            file.write(b"1")
        raise KeyError
    assert fs.ls(folder) == []
    with fs.transaction, fs.open(f"{folder}/a", "wb") as file:
        file.write(b"1" * 10)
    assert fs.cat(f"{folder}/a") == b"1" * 10


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, manager: str) -> Any:
        return fsspec.filesystem("pvfs", manager=manager)

    @pytest.fixture
    def fs_path(self, folder: str) -> str:
        return folder

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return True


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass
