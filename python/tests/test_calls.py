"""Calls that block."""

import os
import signal
import subprocess
import sys
import threading
from array import array
from typing import Any, List

import bmi
import pytest
from bmi import errors

#: Data that goes with a message, fills what a call offers, and is fetched.
LENGTHS = (1, 4096, 65536, 1_000_000)


def test_a_call_brings_request_and_data_there_and_back(client: bmi.Client) -> None:
    for length in (0, 8, 4096, 65536, 3_000_000):
        data = os.urandom(length)
        assert client.call(b"same", data=data) == bmi.Reply(b"same", data, length)


def test_whatever_has_bytes_is_sent_and_received_into(client: bmi.Client) -> None:
    numbers = array("d", range(10_000))
    assert client.call(b"", data=numbers).data == numbers.tobytes()
    assert client.call(b"", data=memoryview(numbers)[100:200]).data == numbers[100:200].tobytes()
    into = bytearray(b"x" * 70_000)
    reply = client.call(b"make 70000", into=into)
    assert reply == bmi.Reply(b"made", b"", 70_000) and into == bytes(70_000)


def test_buffers_are_the_programs_again_after_each_call(client: bmi.Client) -> None:
    for length in LENGTHS * 10:
        data, into = bytearray(length), bytearray(length)
        client.call(b"", data=data)
        client.call(b"make %d" % length, into=into)
        # Neither could be resized if the transport had a view of it.
        data.append(1)
        into.append(1)


def test_buffers_of_a_handler_are_the_programs_again_too(addr: str) -> None:
    with bmi.Server(addr) as server, bmi.Client(server.addrs) as client:

        def calls() -> None:
            for length in LENGTHS * 10:
                client.call(b"", data=bytes(length))
                client.call(b"")

        calling = threading.Thread(target=calls)
        calling.start()
        for length in LENGTHS * 10:
            into, data = bytearray(length), bytearray(length)
            call = server._native.next(None)
            call.data_into(None, into)
            into.append(1)
            call.reply(None, b"", None)
            server._native.next(None).reply(None, b"", data)
            data.append(1)
        calling.join()


def test_a_buffer_cannot_be_resized_during_its_call() -> None:
    with bmi.Server("tcp://127.0.0.1:0") as server, bmi.Client(server.addrs) as client:
        for name in ("data", "into"):
            buffer = bytearray(10)
            calling = threading.Thread(target=client.call, args=(b"",), kwargs={name: buffer})
            calling.start()
            call = server._native.next(None)
            with pytest.raises(BufferError):
                buffer.append(1)
            call.reply(None, b"", None)
            calling.join()
            buffer.append(1)


def test_what_has_no_fitting_bytes_is_refused(client: bmi.Client) -> None:
    with pytest.raises(TypeError):
        client.call(b"", data=7)
    with pytest.raises(BufferError):
        client.call(b"", data=memoryview(bytes(10))[::2])
    with pytest.raises(BufferError):
        client.call(b"make 1", into=bytes(1))
    with pytest.raises(errors.TooLarge):
        client.call(b"make 100", into=bytearray(10))


def test_what_a_handler_raises_is_the_callers_error(client: bmi.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: List[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with pytest.raises(errors.Abandoned, match="KeyError: 'no such key'"):
        client.call(b"bug")
    with pytest.raises(errors.Busy, match="come back later") as busy:
        client.call(b"busy")
    assert busy.value.retryable and busy.value.operation == "call"
    assert client.call(b"still there").bytes == b"still there"
    assert [type(one.exc_value) for one in reported] == [KeyError]


def test_errors_are_those_of_python_too() -> None:
    with bmi.Client("tcp://127.0.0.1:1", timeout=2.0) as client, pytest.raises(ConnectionRefusedError):
        client.call(b"")
    with pytest.raises(ValueError):
        bmi.Client("no address").call(b"")
    with pytest.raises(ValueError):
        bmi.Client("tcp://127.0.0.1:1", timeout=-1.0)


def test_other_threads_run_while_one_waits() -> None:
    with bmi.Server("tcp://127.0.0.1:0") as server:
        client = bmi.Client(server.addrs)
        replies = []
        waiting = threading.Thread(target=lambda: replies.append(client.call(b"")))
        waiting.start()
        # This thread takes the call only if the other one has released the lock, and that one ends
        # only if this one has.
        call = server._native.next(None)
        assert replies == []
        call.reply(None, b"counted", None)
        waiting.join()
        assert replies[0].bytes == b"counted"


def test_a_call_without_an_answer_ends_in_time() -> None:
    with bmi.Server("tcp://127.0.0.1:0") as server, bmi.Client(server.addrs) as client:
        with pytest.raises(TimeoutError):
            client.call(b"", timeout=0.3)
        late = bytearray(5)
        with pytest.raises(errors.TimedOut):
            client.call(b"", into=late, timeout=0.3)


def test_ctrl_c_ends_a_wait() -> None:
    # A shell has its commands in the background ignore it, and Python then leaves that so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with bmi.Server("tcp://127.0.0.1:0") as server, bmi.Client(server.addrs) as client:
        calls: List[Any] = []

        def interrupt() -> None:
            # A call that is dropped would be answered with an error.
            calls.append(server._native.next(None))
            os.kill(os.getpid(), signal.SIGINT)

        arrived = threading.Thread(target=interrupt)
        arrived.start()
        with pytest.raises(KeyboardInterrupt):
            client.call(b"", timeout=60)
        arrived.join()
    signal.signal(signal.SIGINT, before)


def test_the_answer_to_a_call_is_given_once() -> None:
    with bmi.Server("tcp://127.0.0.1:0") as server, bmi.Client(server.addrs) as client:
        waiting = threading.Thread(target=client.call, args=(b"",))
        waiting.start()
        call = server._native.next(None)
        call.reply(None, b"", None)
        waiting.join()
        with pytest.raises(RuntimeError, match="answered"):
            call.reply(None, b"", None)
        call.fail(ValueError())


def test_a_child_of_a_fork_is_refused(client: bmi.Client) -> None:
    client.call(b"")
    child = os.fork()
    if child == 0:
        try:
            client.call(b"")
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.call(b"")


def test_a_program_ends_with_a_server_and_a_call_in_it() -> None:
    program = """
import bmi, threading
server = bmi.Server("tcp://127.0.0.1:0")
threading.Thread(target=server.serve, args=(lambda call: b"",), daemon=True).start()
client = bmi.Client(server.addrs)
client.call(b"")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
