"""Frames that no client sends, from a seed: what a broker has to bear.

`PYTHONPATH=tests python -m kit.fuzz --seed 7 --frames 100000` starts a broker, sends them, and serves another client
meanwhile. The idea: real requests of every API and version are damaged in every way that a wire, a hostile client or a
wrong library could, and the same seed gives the same frames again. A chunk of frames goes over one connection, and ends
with the first that a broker cannot read, because that closes the connection: each frame that is counted is looked at.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import random
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import crc32c
from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import MIN_FRAME_BYTES, SIZE_BYTES, MalformedRequestError, decode_request, load_apis
from keylane.broker.process import BrokerProcess
from keylane.errors import PeerError
from keylane.wire import conditional_commit
from keylane.wire.batches import NewRecord, decode_records, encode_batch
from kit.protocol import ProtocolClient, encode_request
from kit.samples import sample_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_FRAME_BYTES = 100_000
"""`socket.request.max.bytes` of the broker: larger frames are refused by their size."""
CHUNK_FRAMES = 40
PAUSE_S = 0.02
"""Of the other client, between its requests."""
OPEN_CONNECTIONS = 16
ANSWER_TIMEOUT_S = 30.0
SETTINGS = {
    "socket.request.max.bytes": str(MAX_FRAME_BYTES),
    "auto.create.topics.enable": "false",  # topics that are made by chance are no growth that anyone wants to measure
    "log.cleanup.policy": "compact",  # so that the records in batches are read
}

TOPIC = "sample"
BATCH = encode_batch([NewRecord(b"key", b"value" * 5), NewRecord(b"other", None)], timestamp_ms=1)
_TOPIC_ID = uuid.UUID(bytes=b"keylane-topic-id")
"""Stands for the id of the topic, which a broker gives: where a frame still has it, that is put in its place."""
_EVERYTHING: dict[str, Any] = {
    "topic_id": _TOPIC_ID,
    "records": BATCH,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "validate_only": True,
}
_ORDINARY: dict[str, Any] = {
    "acks": -1,
    "transactional_id": None,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "session_epoch": -1,
    "partition_max_bytes": 1_000,
    "max_bytes": 10_000,
    "member_id": "",
    "group_instance_id": None,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "timestamp": 1,
}
_MEMBER: dict[str, Any] = {"member_id": "sample", "instance_id": None}
_SHARES: dict[str, Any] = _MEMBER | {
    "group_id": "shared", "max_wait": datetime.timedelta(0), "min_bytes": 1, "max_bytes": 10_000, "max_records": 5,
    "acknowledgement_batches": (), "forgotten_topics_data": (), "is_renew_ack": False,
}  # fmt: skip
_SAYS: dict[str, Any] = _SHARES | {"share_session_epoch": 1, "acknowledge_types": (1,)}
del _SAYS["acknowledgement_batches"]
_OF_MEMBERS: dict[str, list[dict[str, Any]]] = {
    "consumer_group_heartbeat": [
        _MEMBER
        | {"group_id": "modern", "server_assignor": None, "subscribed_topic_regex": None, "topic_partitions": ()},
        _MEMBER | {"group_id": "modern", "server_assignor": None, "subscribed_topic_regex": None, "member_epoch": 1},
    ],
    "share_group_heartbeat": [_SHARES],
    "share_fetch": [_SHARES, _SHARES | {"share_session_epoch": 1}, _SAYS],
    "share_acknowledge": [_SAYS],
}
"""Requests of members of a consumer group and of a share group that a broker takes, by API: they join, open a session,
and go on in it."""
_OTHER_TOPIC = "others"
_NEW_TOPIC: dict[str, Any] = {
    "num_partitions": 1,
    "replication_factor": 1,
    "validate_only": False,
    "assignments": (),
    "configs": (),
}

_CRC_AT, _CRC_FROM = 17, 21
"""In a record batch."""
_EXTREMES = [
    struct.pack(form, number)
    for form, bits in ((">b", 8), (">h", 16), (">i", 32), (">q", 64))
    for number in (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
] + [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x08"]


def originals() -> list[bytes]:
    """Requests of every API and version, without their sizes: one that names everything, and one of an ordinary client.

    The topic is there. Nothing is made or deleted by them as they are but records, groups and offsets.
    """
    found = []
    for api in load_apis().values():
        for version in range(api.min_version, api.max_version + 1):
            if api.key == conditional_commit.API_KEY:
                condition = conditional_commit.Condition(0, -1, 5, -1, "sample")
                body = conditional_commit.encode_request(
                    conditional_commit.Request("sample", -1, "", None, [(TOPIC, [condition])])
                )
                found.append(struct.pack(">hhihs", api.key, version, 1, 1, b"k") + body)
                continue
            deletes = (
                {"name": "absent", "topic_names": ("absent",), "topic_id": uuid.UUID(int=7)}
                if api.name == "delete_topics"
                else {}
            )
            for values in (_EVERYTHING, _EVERYTHING | _ORDINARY, *_OF_MEMBERS.get(api.name, ())):
                request = sample_request(api.name, version, **values | deletes)
                found.append(encode_request(api.name, request, 1)[SIZE_BYTES:])
    return found


class Fuzz:
    """Frames from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._originals = originals()
        self._produces = [one for one in self._originals if BATCH in one]
        self._apis = load_apis()
        self._ways: list[Callable[[bytes], bytes]] = [
            lambda frame: frame,
            self._flip,
            self._flip,
            self._extreme,
            self._extreme,
            self._cut,
            self._grow,
            self._splice,
            self._other_version,
            self._random_body,
            self._batch,
        ]

    def chunks(self) -> Iterator[tuple[list[bytes], bytes]]:
        """Frames with their sizes, for one connection each, and what stands behind the last one."""
        while True:
            frames: list[bytes] = []
            rest = b""
            while len(frames) < CHUNK_FRAMES:
                frame = self._frame()
                frames.append(len(frame).to_bytes(SIZE_BYTES, "big") + frame)
                if not self._can_be_read(frame):
                    break
            else:
                rest = self._bad_size()
            yield frames, rest

    def _frame(self) -> bytes:
        frame = self._random.choice(self._originals)
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            frame = self._random.choice(self._ways)(frame)
        return frame[:MAX_FRAME_BYTES].ljust(MIN_FRAME_BYTES, b"\0")

    def _can_be_read(self, frame: bytes) -> bool:
        try:
            decode_request(frame, "", self._apis)
        except MalformedRequestError:
            return False
        return True

    def _bad_size(self) -> bytes:
        """A size that is refused, or a frame of which a part never comes."""
        lie = self._random.choice((0, 1, -1, MAX_FRAME_BYTES + 1, 2**31 - 1, -(2**31), 20, 5_000))
        return struct.pack(">i", lie) + self._random.randbytes(self._random.randrange(30))

    def _flip(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self._random.randrange(1, 5)):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _extreme(self, frame: bytes) -> bytes:
        """A length, a count or a number that is far off."""
        value = self._random.choice(_EXTREMES)
        at = self._random.randrange(len(frame))
        return frame[:at] + value + frame[at + len(value) :]

    def _cut(self, frame: bytes) -> bytes:
        return frame[: self._random.randrange(len(frame) + 1)].ljust(MIN_FRAME_BYTES, b"\0")

    def _grow(self, frame: bytes) -> bytes:
        more = self._random.choice((3, 50, 2_000, 2_000, 60_000))
        return frame + self._random.randbytes(self._random.randrange(1, more))

    def _splice(self, frame: bytes) -> bytes:
        other = self._random.choice(self._originals)
        return frame[: self._random.randrange(4, len(frame))] + other[self._random.randrange(len(other)) :]

    def _other_version(self, frame: bytes) -> bytes:
        return frame[:2] + struct.pack(">h", self._random.randrange(-1, 20)) + frame[4:]

    def _random_body(self, frame: bytes) -> bytes:
        return frame[:MIN_FRAME_BYTES] + self._random.randbytes(self._random.randrange(200))

    def _batch(self, _: bytes) -> bytes:
        """A damaged record batch whose checksum holds, in a Produce request."""
        request = self._random.choice(self._produces)
        damaged = bytearray(self._extreme(self._flip(BATCH))[: len(BATCH)])
        damaged[16] = 2
        damaged[_CRC_AT:_CRC_FROM] = crc32c.crc32c(bytes(damaged[_CRC_FROM:])).to_bytes(4, "big")
        return request.replace(BATCH, bytes(damaged))


class Result(NamedTuple):
    """What a run of the fuzzer saw."""

    frames: int
    connections: int
    seconds: float
    resident_mb: tuple[int, ...]
    """Resident memory of the broker after each tenth of the frames."""
    served: int
    """Requests of the other client that were answered rightly meanwhile; every one was."""
    slowest_ms: int


def run(seed: int, frames: int, folder: Path, log: Callable[[str], None] = lambda _: None) -> Result:
    """Start a broker in `folder` and send it so many frames. Raises `PeerError` that names the seed and the place."""
    with BrokerProcess(folder / "data", settings=SETTINGS) as broker:
        topic_id = _make_topics(broker)
        clients, other = _Connections(broker), _OtherClient(broker)
        other.start()
        started = time.monotonic()
        sent = connections = 0
        memory: list[int] = []
        try:
            for chunk, rest in Fuzz(seed).chunks():
                clients.send((b"".join(chunk) + rest).replace(_TOPIC_ID.bytes, topic_id.bytes))
                sent, connections = sent + len(chunk), connections + 1
                if sent * 10 >= frames * (len(memory) + 1):
                    memory.append(_resident_mb(broker.pid))
                    log(f"{sent} frames, {connections} connections, {memory[-1]} MB, {other.served} answers beside")
                if sent >= frames:
                    clients.finish()
                    break
        except (PeerError, OSError) as error:
            raise PeerError(f"seed {seed}: the broker failed in connection {connections}: {error}") from error
        finally:
            other.stop()
        seconds = time.monotonic() - started
        if other.failure is not None:
            raise PeerError(f"seed {seed}: another client was not served: {other.failure!r}") from other.failure
        defects = _defects(broker.log.read_text())
        if defects:
            raise PeerError(f"seed {seed}: handlers failed: {defects.most_common(3)}")
    return Result(sent, connections, seconds, tuple(memory), other.served, other.slowest_ms)


def _make_topics(broker: BrokerProcess) -> uuid.UUID:
    """The id of the first."""
    with ProtocolClient(broker.bootstrap) as client:
        ids = [
            client.ask("create_topics", 7, **_values(sample_request("create_topics", 7, name=name, **_NEW_TOPIC)))
            .topics[0]
            .topic_id
            for name in (TOPIC, _OTHER_TOPIC)
        ]
    found: uuid.UUID = ids[0]
    return found


def _defects(log: str) -> Counter[str]:
    """Which handlers raised what they should not."""
    found: Counter[str] = Counter()
    for entry in re.split(r"^(?=\d{4}-\d\d-\d\d )", log, flags=re.MULTILINE):
        if "Traceback" in entry:
            lines = entry.strip().splitlines()
            found[f"{lines[0].rpartition(': ')[2]} {lines[-3].strip()} {lines[-1]}"] += 1
    return found


class _Connections:
    """Sends chunks, each on a connection of its own; a few are open at once."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._address = broker.host, broker.port
        self._open: deque[socket.socket] = deque()

    def send(self, data: bytes) -> None:
        """Raises `OSError` when nobody listens any more, or a connection is not closed in time."""
        connection = socket.create_connection(self._address, timeout=ANSWER_TIMEOUT_S)
        self._open.append(connection)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it closed before it had read all
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        if len(self._open) > OPEN_CONNECTIONS:
            self._finish()

    def finish(self) -> None:
        """Wait until the broker has closed all of them."""
        while self._open:
            self._finish()

    def _finish(self) -> None:
        with self._open.popleft() as connection, contextlib.suppress(ConnectionResetError):
            while connection.recv(262_144):
                pass


def _resident_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) // 1_024 for line in status.splitlines() if line.startswith("VmRSS"))


class _OtherClient(threading.Thread):
    """Asks the same broker all the while, and looks at every answer."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(name="other-client")
        self._broker = broker
        self._is_over = threading.Event()
        self.served = 0
        self.slowest_ms = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self.failure = error

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _serve(self) -> None:
        """Produces to a topic of its own, and reads what it has produced."""
        with ProtocolClient(self._broker.bootstrap) as client:
            while not self._is_over.wait(PAUSE_S):
                started = time.monotonic()
                self._append_and_read(client, b"%d" % self.served)
                self.slowest_ms = max(self.slowest_ms, round((time.monotonic() - started) * 1_000))
                self.served += 1

    def _append_and_read(self, client: ProtocolClient, value: bytes) -> None:
        records = encode_batch([NewRecord(value, value)], timestamp_ms=1)
        produced = client.ask(
            "produce",
            9,
            **_values(sample_request("produce", 9, name=_OTHER_TOPIC, transactional_id=None, acks=-1, records=records)),
        )
        partition = produced.responses[0].partition_responses[0]
        assert (partition.error_code, partition.base_offset) == (ErrorCode.none, self.served), partition
        asked: dict[str, Any] = {
            "fetch_offset": self.served,
            "partition_max_bytes": 1_000,
            "max_bytes": 1_000,
            "session_epoch": -1,
        }
        asked |= {"current_leader_epoch": -1, "forgotten_topics_data": (), "last_fetched_epoch": -1}
        fetched = client.ask(
            "fetch", 12, **_values(sample_request("fetch", 12, topic=_OTHER_TOPIC, replica_id=-1, **asked))
        )
        partition = fetched.responses[0].partitions[0]
        assert (partition.error_code, partition.high_watermark) == (ErrorCode.none, self.served + 1), partition
        (record,) = decode_records(partition.records)
        assert record.value == value, record


def _values(request: Any) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kit.fuzz", description=run.__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--frames", type=int, default=100_000)
    arguments = parser.parse_args()
    sys.stderr.write(f"seed {arguments.seed}\n")
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = run(arguments.seed, arguments.frames, Path(folder), _say)
        except PeerError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    sys.stdout.write(f"seed {arguments.seed}: {result}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
