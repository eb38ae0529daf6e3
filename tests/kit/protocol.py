"""A client that sends single requests of any API and version and reads the answers with kio: for tests of brokers."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Self

from keylane.wire.versions import encode_response, entity, request_module, request_type, response_type

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_TIMEOUT_S = 20.0


def part(api: str, version: int, part_name: str, /, **values: Any) -> Any:
    """A part of a request, with the fields that this version has."""
    return entity(getattr(request_module(api, version), part_name), **values)


def ask(client: ProtocolClient, api: str, version: int, /, **values: Any) -> Any:
    """The answer to a request with those of the values that this version has."""
    fields = request_type(api, version).__dataclass_fields__
    return client.ask(api, version, **{name: value for name, value in values.items() if name in fields})


def until(step: Callable[[], Any], is_done: Callable[[Any], bool], *, within_s: float = _TIMEOUT_S) -> Any:
    """Ask again, as clients do."""
    deadline = time.monotonic() + within_s
    while not is_done(answer := step()):
        assert time.monotonic() < deadline, f"still {answer} after {within_s} s"
    return answer


def leader_epoch(client: ProtocolClient, topic: str, partition: int = 0) -> int:
    """The present one of a partition."""
    wanted = part("metadata", 12, "MetadataRequestTopic", topic_id=None, name=topic)
    answer = client.ask(
        "metadata", 12, topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    found: int = answer.topics[0].partitions[partition].leader_epoch
    return found


def encode_request(api: str, request: Any, correlation_id: int, client_id: str = "keylane-testing") -> bytes:
    """A whole frame, with its size, for an entity of kio's."""
    kind = type(request)
    name = client_id.encode()
    header = struct.pack(">hhih", kind.__api_key__, kind.__version__, correlation_id, len(name)) + name
    if kind.__flexible__:
        header += b"\0"
    body = header + encode_response(request)
    assert request_type(api, kind.__version__) is kind
    return struct.pack(">i", len(body)) + body


def decode_answer(api: str, version: int, frame: bytes) -> tuple[int, Any]:
    """Correlation id and entity of a response frame (without its size); every byte of it must be used."""
    from kio.serial import entity_reader

    kind = response_type(api, version)
    start = 5 if kind.__header_schema__.__flexible__ else 4
    entity, size = entity_reader(kind)(frame, start)
    assert start + size == len(frame), f"{api} version {version}: {len(frame) - start - size} bytes are left"
    return int.from_bytes(frame[:4], "big", signed=True), entity


class ProtocolClient:
    """One connection. `ask` waits for its answer; `send` and `receive` pipeline."""

    def __init__(self, bootstrap: str, host: str = "") -> None:
        """`host`: the address that it comes from; empty for the system's choice."""
        server, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((server, int(port)), _TIMEOUT_S, source_address=(host, 0))
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        """Send a request made of `fields` and return the answer's entity."""
        correlation_id = self.send(api, request_type(api, version)(**fields))
        answered, entity = decode_answer(api, version, self.receive())
        assert answered == correlation_id, f"answer {answered} to request {correlation_id}"
        return entity

    def send(self, api: str, request: Any) -> int:
        """Send a request without waiting; its correlation id."""
        self._correlation_id += 1
        self.send_bytes(encode_request(api, request, self._correlation_id))
        return self._correlation_id

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """The next response frame. Raises `EOFError` when the broker has closed the connection."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def is_closed_by_peer(self) -> bool:
        """Whether the broker closes the connection (waits for it)."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def has_answer(self, within_s: float) -> bool:
        """Whether something comes (an answer, or the end) within this time."""
        return bool(select.select([self._socket], [], [], within_s)[0])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError(f"the broker closed the connection after {len(data)} of {size} bytes")
            data += piece
        return data
