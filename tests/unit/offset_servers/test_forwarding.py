"""Requests for groups of other servers: forwarded once, in order, unchanged; and refused where no answer comes."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest

from keylane.broker.dispatch import MalformedRequestError
from keylane.broker.server import Client
from keylane.broker.sessions import SaslSession, Session
from keylane.broker.users import UsersFile, add_user
from keylane.kafka.login import Login
from keylane.offset_servers import forwarding as module
from keylane.offset_servers.between import Counts, encode_counts, encode_error, read_counts
from keylane.offset_servers.forwarding import NOBODY, Forwarder, Forwarding
from keylane.wire import codes
from keylane.wire.conditional_commit import OUTCOME_UNKNOWN, read_response
from keylane.wire.own_apis import BEGIN_FORWARDING
from keylane.wire.primitives import FieldError, string
from kit.group_requests import ALL, OF_GROUPS, request_for
from kit.protocol import decode_answer
from kit.upstream import Broker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from keylane.broker.dispatch import Api
    from keylane.offset_servers.nodes import Address

HOST = "192.0.2.7"
WITHIN_S = 10


def untold(parts: list[bytes] | None) -> None:
    raise AssertionError(parts)


class Leaders:
    """By the first letter of a group: `o` is led here, and the others by whom they are mapped to."""

    def __init__(self, others: dict[str, Address]) -> None:
        self.own = {"o"}
        self.others = others

    def partition_of(self, group: str) -> int:
        return ord(group[0])

    def leads(self, partition: int) -> bool:
        return chr(partition) in self.own

    def other_leader(self, partition: int) -> Address | None:
        return self.others.get(chr(partition))


class Told:
    """The answers of one client's connection, as they come."""

    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self._came = asyncio.Event()

    def at(self, number: int) -> Callable[[list[bytes] | None], None]:
        def tell(parts: list[bytes] | None) -> None:
            assert parts is not None
            assert number not in self.frames, "answered twice"
            self.frames[number] = b"".join(parts)[4:]
            self._came.set()

        return tell

    async def has(self, count: int) -> dict[int, bytes]:
        while len(self.frames) < count:
            self._came.clear()
            await self._came.wait()
        return self.frames


class World:
    """This server, a client of it, and another server."""

    def __init__(self, other: Broker, address: Address) -> None:
        self.other = other
        self.leaders = Leaders({"x": address, "y": address})
        self.now = 0.0
        self.forwarding = Forwarding(self.leaders, NOBODY, Login(), clock=lambda: self.now)
        self.closed = asyncio.Event()
        self.session = Session()
        self.client = Forwarder(self.forwarding, Client(HOST, self.session, self.closed.set))
        self.told = Told()

    def ask(self, frame: bytes, number: int) -> bool:
        return self.client.take(frame, self.told.at(number))

    async def let_in(self, *, requests: int, connection: int = 0) -> list[bytes]:
        """Let the server's connection in; the requests that come on it."""
        before = len(self.other.frames)
        (greeting,) = (await self.other.has(before + 1))[before:]
        assert greeting == struct.pack(">hhi", BEGIN_FORWARDING, 0, 1) + string("keylane") + string(HOST)
        self.answer(1, encode_error(codes.NONE), connection)
        return (await self.other.has(before + 1 + requests))[before + 1 :]

    def answer(self, number: int, body: bytes, connection: int = 0) -> None:
        frame = struct.pack(">i", number) + body
        self.other.writers[connection].write(struct.pack(">i", len(frame)) + frame)


def run(check: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        other = Broker()
        world = World(other, await other.start())
        try:
            async with asyncio.timeout(WITHIN_S):
                await check(world)
        finally:
            world.client.close()
            other.close()

    asyncio.run(whole())


def commit(group: str, number: int) -> bytes:
    return request_for(OF_GROUPS["offset_commit"], 7, [group], number)


def code_of_commit(frame: bytes) -> int:
    _, answer = decode_answer("offset_commit", 7, frame)
    return int(answer.topics[0].partitions[0].error_code)


def test_requests_go_to_the_leader_unchanged_and_in_order_and_its_answers_come_back() -> None:
    async def check(world: World) -> None:
        frames = [commit("x1", 11), request_for(OF_GROUPS["heartbeat"], 4, ["y1"], 12), commit("x2", 13)]
        assert all(world.ask(frame, number) for number, frame in enumerate(frames, 11))
        assert not world.ask(commit("o1", 14), 14), "it is led here"
        assert not world.ask(commit("n1", 15), 15), "nobody is known to lead it"
        assert await world.let_in(requests=3) == frames
        for number in (11, 12, 13):
            world.answer(number, b"said %d" % number)
        assert await world.told.has(3) == {n: struct.pack(">i", n) + b"said %d" % n for n in (11, 12, 13)}
        assert world.forwarding.counts == Counts(answered=2, forwarded=3)
        assert len(world.other.writers) == 1

    run(check)


def test_what_is_forwarded_is_never_forwarded_again() -> None:
    async def check(world: World) -> None:
        assert world.forwarding.accept(world.session, "192.0.2.8") == codes.NONE
        assert not world.ask(commit("x1", 1), 1)
        assert world.session.forwarded_from == "192.0.2.8"
        assert world.forwarding.counts == Counts(answered=1, forwarded=0)

    run(check)


def test_a_client_whose_coordinator_has_moved_is_told_so_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(world: World) -> None:
        loop = asyncio.get_running_loop()
        began = now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        assert not world.ask(commit("o1", 1), 1)
        world.leaders.own.clear()
        world.leaders.others["o"] = world.leaders.others["x"]
        assert not world.ask(commit("o1", 2), 2), "NOT_COORDINATOR, and clients that can find the new one do"
        now = began + module.MOVED_S - 0.1
        assert not world.ask(commit("o1", 2), 2)
        now = began + module.MOVED_S
        assert world.ask(commit("o1", 3), 3)
        assert await world.let_in(requests=1) == [commit("o1", 3)]

    run(check)


@pytest.mark.parametrize(("api", "version"), ALL, ids=lambda one: getattr(one, "name", one))
def test_a_leader_that_is_gone_is_answered_with_an_error_and_asked_no_more(api: Api, version: int) -> None:
    async def check(world: World) -> None:
        frame = request_for(api, version, ["x"], 5)
        assert world.ask(frame, 5)
        assert await world.let_in(requests=1) == [frame]
        world.other.close()
        found = (await world.told.has(1))[5]
        assert found[:4] == frame[4:8]
        if api.name == "conditional_commit":
            assert read_response(found, 4).error == OUTCOME_UNKNOWN, (
                "another error would say that nothing was committed"
            )
        else:
            assert error_of(decode_answer(api.name, version, found)[1]) == codes.NOT_COORDINATOR
        assert not world.forwarding.links
        assert world.other.frames[1:] == [frame], "it was sent once"

    run(check)


def error_of(answer: Any) -> int:
    """The first error in it."""
    for name in ("groups", "results", "topics", "partitions"):
        rows = getattr(answer, name, ())
        if rows and not getattr(answer, "error_code", 0):
            return error_of(rows[0])
    return int(answer.error_code)


@pytest.mark.parametrize("api", ["conditional_commit", "offset_commit"])
def test_a_leader_that_is_not_there_or_takes_nothing_is_an_error_too(api: str) -> None:
    async def check(world: World) -> None:
        version = OF_GROUPS[api].max_version
        frame = request_for(OF_GROUPS[api], version, ["x"], 5)
        assert world.ask(frame, 5)
        await world.other.has(1)
        world.answer(1, encode_error(codes.CLUSTER_AUTHORIZATION_FAILED))
        await world.told.has(1)
        world.other.close()
        assert world.ask(frame, 6)
        for found in (await world.told.has(2)).values():
            if api == "conditional_commit":
                assert read_response(found, 4).error == codes.NOT_COORDINATOR, "nothing was sent"
            else:
                assert error_of(decode_answer(api, version, found)[1]) == codes.NOT_COORDINATOR
        assert not world.closed.is_set()
        assert len(world.other.frames) == 1

    run(check)


def test_the_next_request_goes_over_a_new_connection() -> None:
    async def check(world: World) -> None:
        assert world.ask(commit("x", 1), 1)
        assert await world.let_in(requests=1) == [commit("x", 1)]
        world.other.writers[0].close()
        assert code_of_commit((await world.told.has(1))[1]) == codes.NOT_COORDINATOR
        assert world.ask(commit("x", 2), 2)
        assert await world.let_in(requests=1, connection=1) == [commit("x", 2)]

    run(check)


def test_nobody_waits_for_a_server_that_has_left_the_group() -> None:
    async def check(world: World) -> None:
        address = world.leaders.others["x"]
        assert world.ask(commit("x", 1), 1)
        assert await world.let_in(requests=1) == [commit("x", 1)]
        world.forwarding.see([address])
        assert world.forwarding.links
        world.forwarding.see([])
        assert code_of_commit((await world.told.has(1))[1]) == codes.NOT_COORDINATOR

    run(check)


def test_a_server_that_stood_still_forwards_nothing_that_has_waited() -> None:
    """Its client may have committed more elsewhere, and the older commit would come last."""

    async def check(world: World) -> None:
        world.now = module.STOOD_STILL_S + 0.1
        assert world.ask(commit("x", 1), 1), "before the loop's first turn"
        world.forwarding.beat()
        world.now += module.REFUSES_S / 2
        world.forwarding.beat()
        assert world.ask(commit("x", 2), 2), "what is read a little later"
        found = await world.told.has(2)
        assert [code_of_commit(found[number]) for number in (1, 2)] == [codes.NOT_COORDINATOR] * 2
        assert not world.other.frames
        assert not world.ask(commit("o", 3), 3), "a group that is led here is fenced by the log"
        world.now += module.REFUSES_S
        world.forwarding.beat()
        assert world.ask(commit("x", 4), 4)
        assert await world.let_in(requests=1) == [commit("x", 4)]

    run(check)


def test_a_leader_has_its_time_and_a_join_the_rebalances_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)

    async def check(world: World) -> None:
        join = request_for(OF_GROUPS["join_group"], 5, ["x"], 1)  # its rebalance time-out is 10 s
        assert world.ask(join, 1)
        assert world.ask(commit("x", 2), 2)
        assert await world.let_in(requests=2) == [join, commit("x", 2)]
        (link,) = world.forwarding.links
        await asyncio.wait([asyncio.create_task(world.told.has(1))], timeout=0.2)
        assert not world.told.frames, "neither the join nor what stands behind it is late"
        world.answer(1, b"joined")
        assert code_of_commit((await world.told.has(2))[2]) == codes.NOT_COORDINATOR
        assert link not in world.forwarding.links

    run(check)


def test_a_client_that_goes_takes_its_waiting_requests_with_it() -> None:
    async def check(world: World) -> None:
        join = request_for(OF_GROUPS["join_group"], 5, ["x"], 1)
        assert world.client.take(join, untold)
        await world.let_in(requests=1)
        world.client.close()
        assert not world.forwarding.links
        await world.other.left.wait()

    run(check)


def test_a_request_for_groups_of_several_servers_is_divided() -> None:
    async def check(world: World) -> None:
        api = OF_GROUPS["delete_groups"]
        frame = request_for(api, 2, ["o1", "x1", "n1", "y1"], 9)
        assert world.ask(frame, 9)
        assert await world.let_in(requests=1) == [request_for(api, 2, ["x1", "y1"], 9)]
        row = b"\0\0\0"
        found = b"\0" + bytes(4) + b"\3" + b"\3y1" + row + b"\3x1" + row + b"\0"
        world.answer(9, found)
        _, answer = decode_answer("delete_groups", 2, (await world.told.has(1))[9])
        assert [(one.group_id, int(one.error_code)) for one in answer.results] == [
            ("o1", codes.NOT_COORDINATOR),  # of this test's handlers, which refuse everything
            ("x1", codes.NONE),
            ("n1", codes.NOT_COORDINATOR),
            ("y1", codes.NONE),
        ]

    run(check)


def test_what_cannot_be_read_is_left_to_who_says_so() -> None:
    async def check(world: World) -> None:
        assert not world.ask(commit("x", 1)[:20], 1)
        api = OF_GROUPS["describe_groups"]
        with pytest.raises(MalformedRequestError, match="describe_groups version 5"):
            world.ask(request_for(api, 5, ["x", "o"], 2)[:-1], 2)

    run(check)


def test_a_server_that_cannot_log_in_at_others_forwards_nothing() -> None:
    forwarding = Forwarding(Leaders({"x": ("nowhere", 1)}), NOBODY, None)
    client = Forwarder(forwarding, Client(HOST, Session(), lambda: None))
    assert not client.take(commit("x", 1), untold)


def test_only_the_servers_user_speaks_for_other_clients(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    now_ms = 5_000

    def session(user: str) -> SaslSession:
        add_user(users, user, "secret")
        made = SaslSession(UsersFile(str(users)), ("PLAIN",), 1_000, lambda: now_ms)
        assert made.handshake("PLAIN")
        made.authenticate(f"\0{user}\0secret".encode())
        return made

    forwarding = Forwarding(Leaders({}), NOBODY, Login(None, "PLAIN", "servers", "secret"))
    assert forwarding.accept(session("alice"), HOST) == codes.CLUSTER_AUTHORIZATION_FAILED
    server = session("servers")
    assert forwarding.accept(server, HOST) == codes.NONE
    now_ms += 2_000
    server.admit(OF_GROUPS["offset_commit"].key)  # its clients renew their authentication at the other server
    without = Forwarding(Leaders({}), NOBODY, None)
    assert without.accept(session("servers"), HOST) == codes.CLUSTER_AUTHORIZATION_FAILED


def test_counts_are_two_numbers() -> None:
    assert read_counts(encode_counts(Counts(2**40, 7))) == Counts(2**40, 7)
    with pytest.raises(FieldError, match="3 bytes where two numbers are due"):
        read_counts(b"abc")


def test_a_server_that_is_away_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    forwarding = Forwarding(Leaders({}), NOBODY, None, clock=lambda: now[0])
    for now[0] in (100.0, 101.0, 109.9, 110.0, 111.0):
        forwarding.unanswered(("away", 1), 2, "gone")
    forwarding.unanswered(("other", 1), 1, "gone")
    assert [one.getMessage() for one in caplog.records] == [
        "server away:1 leaves 2 requests unanswered: gone",
        "server away:1 leaves 2 requests unanswered: gone (4 more since it was told of last)",
        "server other:1 leaves 1 requests unanswered: gone",
    ]
    forwarding.see([("other", 1)])
    assert forwarding.told == {("other", 1): (111.0, 0)}
