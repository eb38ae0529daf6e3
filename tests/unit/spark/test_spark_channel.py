"""The socket between lane and driver: what it delivers, whom it refuses, and how each end notices the other's end."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import socket
import struct
import threading
from multiprocessing.connection import Client, Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest

from keylane.consumer.commits import Told
from keylane.consumer.snapshot import PartitionSnapshot, Snapshot
from keylane.errors import PeerError
from keylane.spark.channel import (
    Address,
    Arrived,
    Departed,
    DriverSocket,
    Go,
    Hello,
    LaneEnd,
    Moved,
    Reported,
    Shipped,
    Show,
    SocketEvent,
    Void,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = b"k" * 32
HELLO = Hello(lane=2, launch=1, task_attempt=0, pid=17, parent_pid=16, host="here")
PATIENCE_S = 10.0

Events = queue.SimpleQueue[SocketEvent]


@pytest.fixture
def events() -> Events:
    return queue.SimpleQueue()


@pytest.fixture
def driver(events: Events) -> Iterator[DriverSocket]:
    made = DriverSocket("127.0.0.1", "127.0.0.1", KEY, events.put)
    yield made
    made.close()


def bare_lane(driver: DriverSocket) -> Connection[Any, Any]:
    """A lane's socket, on which anything can be said."""
    made = Client((driver.address.host, driver.address.port), authkey=KEY)
    made.send(HELLO)
    return made


def write(connection: Connection[Any, Any], data: bytes) -> None:
    while data:
        data = data[os.write(connection.fileno(), data) :]


def test_a_lane_says_hello_reports_and_takes_orders(driver: DriverSocket, events: Events) -> None:
    lane = LaneEnd(driver.address, HELLO)
    arrived = events.get(timeout=PATIENCE_S)
    assert isinstance(arrived, Arrived)
    assert arrived.end.hello == HELLO
    lane.send(Snapshot(processed=3))
    reported = events.get(timeout=PATIENCE_S)
    assert isinstance(reported, Reported)
    assert (reported.end, reported.snapshot.processed) == (arrived.end, 3)
    assert lane.receive(0.0) is None
    arrived.end.send(Go())
    arrived.end.send("stop")
    assert [lane.receive(PATIENCE_S), lane.receive(PATIENCE_S)] == [Go(), "stop"]
    lane.close()
    assert events.get(timeout=PATIENCE_S) == Departed(arrived.end)
    arrived.end.send("stop")  # to a lane that has gone: nothing to raise


def test_lanes_that_start_together_find_room(monkeypatch: pytest.MonkeyPatch, events: Events) -> None:
    """As many as connect before the driver takes the first one; beyond 128 each used to wait for ten seconds."""
    monkeypatch.setattr(DriverSocket, "_accept", lambda _: None)
    driver = DriverSocket("127.0.0.1", "127.0.0.1", KEY, events.put)
    with contextlib.ExitStack() as stack:
        stack.callback(driver.close)
        waiting = select.poll()
        for _ in range(300):
            lane = stack.enter_context(socket.socket())
            lane.setblocking(False)
            assert lane.connect_ex((driver.address.host, driver.address.port)) in (0, errno.EINPROGRESS)
            waiting.register(lane, select.POLLOUT)
        assert sum(bool(event & select.POLLOUT) for _, event in waiting.poll(0)) == 300


def test_a_lane_notices_that_its_driver_is_gone(driver: DriverSocket, events: Events) -> None:
    lane = LaneEnd(driver.address, HELLO)
    events.get(timeout=PATIENCE_S)
    driver.close()
    with pytest.raises(ConnectionError):
        lane.receive(PATIENCE_S)
    lane.close()


def test_a_wrong_key_is_refused_and_delivers_nothing(driver: DriverSocket, events: Events) -> None:
    address = Address(driver.address.host, driver.address.port, b"another key")
    with pytest.raises(PeerError, match="lane 2 on here does not reach its driver"):
        LaneEnd(address, HELLO)
    lane = LaneEnd(driver.address, HELLO)
    assert isinstance(events.get(timeout=PATIENCE_S), Arrived)
    assert events.empty()
    lane.close()


def test_a_lane_tells_nothing_to_who_does_not_prove_the_key() -> None:
    told: list[bytes] = []

    def stranger() -> None:
        """Takes any answer for the right one, and has none."""
        accepted, _ = server.accept()
        connection: Connection[Any, Any] = Connection(accepted.detach())
        connection.send_bytes(b"#CHALLENGE#" + b"0" * 20)
        connection.recv_bytes(256)
        connection.send_bytes(b"#WELCOME#")
        told.append(connection.recv_bytes(256))
        connection.send_bytes(b"no answer")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=stranger)
        thread.start()
        with pytest.raises(PeerError, match="lane 2 on here does not reach its driver"):
            LaneEnd(Address("127.0.0.1", server.getsockname()[1], KEY), HELLO)
        thread.join(PATIENCE_S)
    assert told[0].startswith(b"#CHALLENGE#")


def test_a_connection_that_says_nothing_holds_up_no_lane(driver: DriverSocket, events: Events) -> None:
    with socket.create_connection((driver.address.host, driver.address.port)):
        lane = LaneEnd(driver.address, HELLO)
        assert isinstance(events.get(timeout=PATIENCE_S), Arrived)
        lane.close()


def test_a_stranger_that_says_nothing_is_dropped(
    driver: DriverSocket, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    monkeypatch.setattr("keylane.spark.channel.HANDSHAKE_TIMEOUT_S", 0.2)
    with socket.create_connection((driver.address.host, driver.address.port)) as stranger:
        stranger.settimeout(PATIENCE_S)
        while stranger.recv(1024):  # the challenge, then the end
            pass
    assert events.empty()


def test_no_driver_is_a_peer_error_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PeerError, match=f"127.0.0.1:{port}.*spark.driver.host"):
        LaneEnd(Address("127.0.0.1", port, KEY), HELLO)


def test_the_key_stays_out_of_an_addresss_text(driver: DriverSocket) -> None:
    assert "kkk" not in repr(driver.address)


def test_closing_leaves_no_thread(events: Events) -> None:
    before = set(threading.enumerate())
    driver = DriverSocket("127.0.0.1", "127.0.0.1", KEY, events.put)
    lane = LaneEnd(driver.address, HELLO)
    events.get(timeout=PATIENCE_S)
    driver.close()
    assert isinstance(events.get(timeout=PATIENCE_S), Departed)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    lane.close()


def test_an_order_that_must_not_wait_is_sent_or_not(driver: DriverSocket, events: Events) -> None:
    lane = LaneEnd(driver.address, HELLO)
    arrived = events.get(timeout=PATIENCE_S)
    assert isinstance(arrived, Arrived)
    assert arrived.end.offer("left")
    assert lane.receive(PATIENCE_S) == "left"
    moved = Moved(tuple((number, None) for number in range(500)))
    sent = 0
    while arrived.end.offer(moved):
        sent += 1
    assert [lane.receive(PATIENCE_S) for _ in range(sent)] == [moved] * sent
    assert arrived.end.offer("left")
    lane.close()
    assert isinstance(events.get(timeout=PATIENCE_S), Departed)
    assert not arrived.end.offer("left"), "nobody is there"


def test_results_come_one_by_one_in_order_and_beside_snapshots(driver: DriverSocket, events: Events) -> None:
    lane = LaneEnd(driver.address, HELLO)
    assert isinstance(events.get(timeout=PATIENCE_S), Arrived)
    said: list[Any] = [Show(((1, b"x"),)), Snapshot(processed=3), Void((1,)), Told({("t", 0): 5}, {}, "", [])]
    for message in said:
        (lane.send if isinstance(message, Snapshot) else lane.post)(message)
    heard = [events.get(timeout=PATIENCE_S) for _ in said]
    assert [type(one) for one in heard] == [Shipped, Reported, Shipped, Shipped]
    assert [one.snapshot if isinstance(one, Reported) else one.what for one in heard] == said  # type: ignore[union-attr]
    lane.close()


def test_what_was_left_out_of_a_report_is_in_the_next(driver: DriverSocket, events: Events) -> None:
    lane = LaneEnd(driver.address, HELLO)
    assert isinstance(events.get(timeout=PATIENCE_S), Arrived)
    one, other = (PartitionSnapshot("t", number, 5, 5, 4, 0, 5, 9) for number in range(2))
    lane.send(Snapshot(processed=1, failed=1, partitions=(one,)))
    keeps_up, lane._writable = lane._writable, select.poll()  # one that never finds room
    lane.send(Snapshot(processed=2, failed=2, partitions=(one, other)))
    lane._writable = keeps_up
    last = Snapshot(processed=3, failed=2, partitions=(one, other))
    lane.send(last)
    lane.send(last)
    heard = [events.get(timeout=PATIENCE_S) for _ in range(3)]
    assert [one.snapshot for one in heard if isinstance(one, Reported)] == [
        Snapshot(processed=1, failed=1, partitions=(one,)),
        last,
        last,
    ]
    lane.close()


def test_another_process_of_a_lane_reports_everything(driver: DriverSocket, events: Events) -> None:
    for _ in range(2):
        lane = LaneEnd(driver.address, HELLO)
        assert isinstance(events.get(timeout=PATIENCE_S), Arrived)
        lane.send(Snapshot(processed=3, failed=1))
        reported = events.get(timeout=PATIENCE_S)
        assert isinstance(reported, Reported)
        assert reported.snapshot == Snapshot(processed=3, failed=1)
        lane.close()
        assert isinstance(events.get(timeout=PATIENCE_S), Departed)


def test_one_thread_hears_all_lanes(driver: DriverSocket, events: Events) -> None:
    before = threading.active_count()
    lanes = [LaneEnd(driver.address, HELLO) for _ in range(20)]
    arrived = [events.get(timeout=PATIENCE_S) for _ in lanes]
    assert len({one.end for one in arrived if isinstance(one, Arrived)}) == len(lanes)
    for lane in lanes:
        lane.send(Snapshot(processed=3))
    heard = [events.get(timeout=PATIENCE_S) for _ in lanes]
    assert {one.end for one in heard if isinstance(one, Reported)} == {
        one.end for one in arrived if isinstance(one, Arrived)
    }
    for thread in [one for one in threading.enumerate() if one.name == "keylane-lane-socket"]:
        thread.join(PATIENCE_S)
    assert threading.active_count() <= before
    for lane in lanes:
        lane.close()


def test_a_message_that_comes_in_pieces_holds_up_no_other_lane(driver: DriverSocket, events: Events) -> None:
    slow, other = bare_lane(driver), LaneEnd(driver.address, HELLO)
    arrived = [events.get(timeout=PATIENCE_S) for _ in range(2)]
    message = bytes(ForkingPickler.dumps(Show(((1, b"x" * 300_000),))))
    framed = struct.pack("!i", len(message)) + message
    pieces = [framed[:2], framed[2:100_000], framed[100_000:]]
    for piece in pieces[:2]:
        write(slow, piece)
    other.send(Snapshot(processed=3))
    assert isinstance(events.get(timeout=PATIENCE_S), Reported)
    write(slow, pieces[2])
    shipped = events.get(timeout=PATIENCE_S)
    assert isinstance(shipped, Shipped)
    assert shipped.what == Show(((1, b"x" * 300_000),))
    assert shipped.end in [one.end for one in arrived]
    slow.close()
    other.close()


def test_the_thread_may_have_ended_before_close_wakes_it(driver: DriverSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that has just been let in woke it, and it sees that it is to end."""
    wake_up = driver._wake_up

    def late() -> None:
        wake_up()
        driver._thread.join()
        wake_up()

    monkeypatch.setattr(driver, "_wake_up", late)
    driver.close()


def test_a_message_that_cannot_be_taken_closes_its_lane_alone(
    driver: DriverSocket, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = bare_lane(driver), LaneEnd(driver.address, HELLO)
    for _ in range(2):
        assert isinstance(events.get(timeout=PATIENCE_S), Arrived)
    broken.send_bytes(b"no pickle")
    assert isinstance(events.get(timeout=PATIENCE_S), Departed)
    assert "what lane 2 (process 17 on here) said cannot be taken" in caplog.text
    other.send(Snapshot(processed=3))
    assert isinstance(events.get(timeout=PATIENCE_S), Reported)
    broken.close()
    other.close()
