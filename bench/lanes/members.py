"""A group of a thousand members on a real Apache Kafka: what its coordinator has to do for lanes that come and go.

One process plays the members: a connection and a coroutine each, with Kafka's own requests. They join, tell that they
live, and give back what they must, as clients do; they read and commit nothing. Measured are the time until all have
their partitions, the broker's processor time, and the bytes on the wire.
"""

from __future__ import annotations

import asyncio
import io
import os
import struct
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import peers
from kio.schema.consumer_group_heartbeat.v1 import request as beat_848
from kio.schema.consumer_group_heartbeat.v1 import response as beat_848_answer
from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.heartbeat.v3.response import HeartbeatResponse
from kio.schema.join_group.v5.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.join_group.v5.response import JoinGroupResponse
from kio.schema.leave_group.v1.request import LeaveGroupRequest
from kio.schema.leave_group.v1.response import LeaveGroupResponse
from kio.schema.sync_group.v3.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.sync_group.v3.response import SyncGroupResponse
from kio.serial import entity_reader, entity_writer

from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

KINDS = ("classic", "static", "KIP-848")
MEMBERS = 1_000
TOPIC = "members"
"""It has a partition for each member."""
SESSION = timedelta(seconds=45)
BEAT_S = 3.0
"""Of classic members, Java's default; those of KIP-848 are told by the broker (5 s)."""
STEADY_S = 15.0
PATIENCE_S = 300.0
AT_ONCE = 100
"""Connections that are opened at the same time: Apache Kafka's backlog has 50 places."""

NEEDS_ID, UNKNOWN, REBALANCES, OLD_GENERATION = 79, 25, 27, 22


class Traffic:
    """What all members of a group have sent and got."""

    def __init__(self) -> None:
        self.requests = self.bytes = self.longest = 0

    def add(self, request: int, answer: int) -> None:
        self.requests += 1
        self.bytes += request + answer
        self.longest = max(self.longest, request, answer)


class Link:
    """A connection to the coordinator. One question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, traffic: Traffic) -> None:
        self._reader, self._writer, self._traffic = reader, writer, traffic

    async def ask(self, request: Any, answer: type[Any]) -> Any:
        kind = type(request)
        buffer = io.BytesIO()
        flexible = b"\0" if kind.__flexible__ else b""
        buffer.write(struct.pack(">hhih", kind.__api_key__, kind.__version__, 1, 4) + b"play" + flexible)
        entity_writer(kind)(buffer, request)
        data = buffer.getvalue()
        self._writer.write(struct.pack(">i", len(data)) + data)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        got = await self._reader.readexactly(size)
        self._traffic.add(len(data) + 4, size + 4)
        return entity_reader(answer)(got, 5 if kind.__flexible__ else 4)[0]

    def close(self) -> None:
        self._writer.close()


class Member:
    """One member. `owned` is what it works on, of the generation `epoch`."""

    in_step = True
    """Whether what members own counts only in the same generation."""

    def __init__(self, group: str, number: int, size: int, changed: Callable[[], None]) -> None:
        self.group, self.number, self.size, self._changed = group, number, size, changed
        self.id = ""
        self.epoch = -1
        self.owned: frozenset[int] = frozenset()

    def has(self, epoch: int, owned: frozenset[int]) -> None:
        self.epoch, self.owned = epoch, owned
        self._changed()

    async def live(self, link: Link) -> None:
        """Join, and go on until it is cancelled."""
        raise NotImplementedError

    async def leave(self, link: Link) -> None:
        raise NotImplementedError


class ClassicMember(Member):
    """Gives everything back when the group rebalances, as librdkafka's default assignors do."""

    instance: str | None = None

    async def live(self, link: Link) -> None:
        while True:
            if await self._joined(link):
                while await self._beats(link):
                    pass

    async def leave(self, link: Link) -> None:
        await link.ask(LeaveGroupRequest(group_id=_any(self.group), member_id=self.id), LeaveGroupResponse)

    async def _joined(self, link: Link) -> bool:
        """One attempt."""
        names = struct.pack(">hih", 1, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">ii", -1, 0)
        answer = await link.ask(
            JoinGroupRequest(
                group_id=_any(self.group),
                session_timeout=_any(SESSION),
                rebalance_timeout=_any(timedelta(minutes=5)),
                member_id=self.id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=(JoinGroupRequestProtocol(name="range", metadata=names),),
            ),
            JoinGroupResponse,
        )
        code = int(answer.error_code)
        if code:
            self._failed(code, answer.member_id)
            return False
        self.id = answer.member_id
        shares: tuple[SyncGroupRequestAssignment, ...] = ()
        if answer.leader == self.id:
            ids = sorted(one.member_id for one in answer.members)
            shares = tuple(
                SyncGroupRequestAssignment(
                    member_id=one, assignment=_assignment(list(range(place, self.size, len(ids))))
                )
                for place, one in enumerate(ids)
            )
        synced = await link.ask(
            SyncGroupRequest(
                group_id=_any(self.group),
                generation_id=answer.generation_id,
                member_id=self.id,
                group_instance_id=self.instance,
                assignments=shares,
            ),
            SyncGroupResponse,
        )
        if code := int(synced.error_code):
            self._failed(code, self.id)
            return False
        self.has(answer.generation_id, _partitions(synced.assignment))
        return True

    async def _beats(self, link: Link) -> bool:
        await asyncio.sleep(BEAT_S)
        answer = await link.ask(
            HeartbeatRequest(
                group_id=_any(self.group),
                generation_id=_any(self.epoch),
                member_id=self.id,
                group_instance_id=self.instance,
            ),
            HeartbeatResponse,
        )
        if code := int(answer.error_code):
            self._failed(code, self.id)
        return not code

    def _failed(self, code: int, member: str) -> None:
        """What the group's rules bring about; raises what they do not."""
        self.has(-1, frozenset())
        if code == NEEDS_ID:
            self.id = member
        elif code == UNKNOWN:
            self.id = ""
        elif code not in (REBALANCES, OLD_GENERATION):
            raise RuntimeError(f"member {self.number}: Kafka's error {code}")


class StaticMember(ClassicMember):
    """Comes back under its name (KIP-345)."""

    def __init__(self, group: str, number: int, size: int, changed: Callable[[], None]) -> None:
        super().__init__(group, number, size, changed)
        self.instance = f"lane-{number}"

    async def leave(self, link: Link) -> None:
        """It does not: its place waits for it."""


class NewMember(Member):
    """The broker says what it has (KIP-848); it gives back what it must, and tells so."""

    in_step = False

    async def live(self, link: Link) -> None:
        self.id, self.epoch = str(uuid.uuid4()), 0
        topics: Any = (TOPIC,)
        told: tuple[beat_848.TopicPartitions, ...] | None = ()
        while True:
            answer = await link.ask(self._beat(topics, told), beat_848_answer.ConsumerGroupHeartbeatResponse)
            if code := int(answer.error_code):
                raise RuntimeError(f"member {self.number}: Kafka's error {code}: {answer.error_message}")
            topics = told = None
            given = answer.assignment
            if given is not None:
                owned = frozenset(int(p) for one in given.topic_partitions for p in one.partitions)
                told = tuple(
                    beat_848.TopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
                    for one in given.topic_partitions
                )
                self.has(answer.member_epoch, owned)
                continue  # it tells at once what it has
            self.has(answer.member_epoch, self.owned)
            await asyncio.sleep(answer.heartbeat_interval.total_seconds())

    async def leave(self, link: Link) -> None:
        self.epoch = -1
        await link.ask(self._beat(None, None), beat_848_answer.ConsumerGroupHeartbeatResponse)

    def _beat(self, topics: Any, told: Any) -> beat_848.ConsumerGroupHeartbeatRequest:
        changes: dict[str, Any] = {} if topics is None else {"rebalance_timeout": timedelta(minutes=5)}
        return beat_848.ConsumerGroupHeartbeatRequest(
            group_id=_any(self.group),
            member_id=self.id,
            member_epoch=_any(self.epoch),
            subscribed_topic_names=topics,
            topic_partitions=told,
            **changes,
        )


class Group:
    """Members of one kind, and when all have their partitions."""

    def __init__(self, kind: str, port: int, size: int) -> None:
        self._kind = {"classic": ClassicMember, "static": StaticMember, "KIP-848": NewMember}[kind]
        self._name, self._port, self._size = _name(kind, size), port, size
        self._running: dict[Member, tuple[asyncio.Task[None], Link]] = {}
        self._changed = asyncio.Event()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.traffic = Traffic()

    async def start(self, number: int) -> None:
        async with self._gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        link = Link(reader, writer, self.traffic)
        member = self._kind(self._name, number, self._size, self._changed.set)
        self._running[member] = asyncio.create_task(member.live(link)), link

    async def stop(self, number: int, *, leaves: bool) -> None:
        member = next(one for one in self._running if one.number == number)
        task, link = self._running.pop(member)
        await _cancelled(task)
        if leaves:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            last = Link(reader, writer, self.traffic)
            await member.leave(last)
            last.close()
        link.close()

    async def settled(self) -> float:
        """Seconds until every partition has one owner, in one generation. Raises `TimeoutError`."""
        begun = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_settled():
                for task, _ in self._running.values():
                    if task.done():
                        task.result()
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 1.0)
        return time.perf_counter() - begun

    def _is_settled(self) -> bool:
        held = [one.owned for one in self._running]
        sizes = [len(one) for one in held]
        return (
            sum(sizes) == len(frozenset().union(*held)) == self._size
            and max(sizes) - min(sizes) <= 1
            and (not self._kind.in_step or len({one.epoch for one in self._running}) == 1)
        )

    async def close(self) -> None:
        for member in list(self._running):
            task, link = self._running.pop(member)
            await _cancelled(task)
            link.close()


def _name(kind: str, size: int) -> str:
    return f"{kind}-{size}"


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def measure(kind: str, size: int = MEMBERS) -> dict[str, Any]:
    """One kind on a broker of its own: all start, rest, one leaves and one comes; a static one is gone for a moment."""
    with peers.ApacheKafka({"group.initial.rebalance.delay.ms": "3000"}, heap_mb=1_024) as kafka:
        admin = Admin({"bootstrap.servers": kafka.bootstrap}, timeout_ms=120_000)
        admin.create_topics({TOPIC: size})
        while TOPIC not in admin.topics():  # a topic is made before every broker knows of it
            time.sleep(0.1)
        admin.committed_offsets(_name(kind, size), [TOPIC])  # so that its coordinator is there
        return asyncio.run(_measured(kind, kafka, size))


async def _measured(kind: str, kafka: peers.ApacheKafka, size: int) -> dict[str, Any]:
    group = Group(kind, kafka.port, size)
    found: dict[str, Any] = {"kind": kind, "members": size}
    try:

        async def all_start() -> None:
            await asyncio.gather(*(group.start(number) for number in range(size)))

        async def one_goes() -> None:
            await group.stop(size // 2, leaves=True)

        async def one_comes() -> None:
            await group.start(size // 2)

        steps: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [("start", all_start)]
        if kind == "static":

            async def one_returns() -> None:
                await one_goes()
                await one_comes()

            steps += [("comes", one_returns)]
        else:
            steps += [("goes", one_goes), ("comes", one_comes)]
        for name, step in steps:
            found |= {f"{name}_{what}": value for what, value in (await _spent(group, kafka, step)).items()}
            if name == "start":
                found |= await _at_rest(group, kafka)
    finally:
        await group.close()
    return found | {"load": os.getloadavg()[0]}


async def _at_rest(group: Group, kafka: peers.ApacheKafka) -> dict[str, Any]:
    requests, size, cpu = group.traffic.requests, group.traffic.bytes, kafka.processor_s()
    await asyncio.sleep(STEADY_S)
    return {
        "rest_cores": round((kafka.processor_s() - cpu) / STEADY_S, 3),
        "rest_requests_per_s": round((group.traffic.requests - requests) / STEADY_S),
        "rest_kb_per_s": round((group.traffic.bytes - size) / STEADY_S / 1_000, 1),
    }


async def _spent(
    group: Group, kafka: peers.ApacheKafka, step: Callable[[], Coroutine[Any, Any, None]]
) -> dict[str, Any]:
    """What a step takes until the group has settled."""
    traffic, cpu, begun = group.traffic, kafka.processor_s(), time.perf_counter()
    requests, size, traffic.longest = traffic.requests, traffic.bytes, 0
    await step()
    await group.settled()
    return {
        "s": round(time.perf_counter() - begun, 2),
        "cpu_s": round(kafka.processor_s() - cpu, 2),
        "requests": traffic.requests - requests,
        "kb": round((traffic.bytes - size) / 1_000),
        "longest_kb": round(traffic.longest / 1_000, 1),
    }


def _assignment(partitions: list[int]) -> bytes:
    """ConsumerProtocolAssignment, version 1."""
    head = struct.pack(">hih", 1, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", len(partitions))
    return head + struct.pack(f">{len(partitions)}i", *partitions) + struct.pack(">i", -1)


def _partitions(assignment: bytes) -> frozenset[int]:
    if not assignment:
        return frozenset()
    at = 8 + len(TOPIC)
    (count,) = struct.unpack_from(">i", assignment, at)
    return frozenset(struct.unpack_from(f">{count}i", assignment, at + 4))


def _any(value: object) -> Any:
    """kio's types of ids and times are their own."""
    return value
