"""What stands in a log of steps: marks of owners, answers in pieces, and steps that are to be forgotten. Pure.

A record's key says what it is, by a version and a kind, its value is a part of an answer:

| kind | key, behind version and kind | value |
|---|---|---|
| mark | | who owns the log from here on |
| piece | partition, offset, checksum, topic id, name and key of the step, number of the piece, pieces in all | bytes |
| forgotten | the same without the last two | |

Numbers are big-endian, texts have their length in 16 bits before them. Anybody may write to a topic: what is not of
this form is refused, whatever its bytes are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from keylane.errors import PeerError
from keylane.wire.primitives import FieldError, FieldReader, string

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1
MARK, PIECE, FORGOTTEN = range(3)
MAX_TEXT_BYTES = 1_000
"""Of a step's name, of its key, and of a topic's id: an answer goes with them into one batch."""
OVERHEAD_BYTES = 4_096
"""What a batch of one piece has beside it, at most: its header, and the record's key with its texts."""

_HEAD = struct.Struct(">BB")
_RECORD = struct.Struct(">iqq")
_PIECE = struct.Struct(">II")


class StepFormatError(PeerError):
    """Bytes that are no record of steps, or one of a kind that this release does not know."""


class RecordIdentity(NamedTuple):
    """Which record it is: also where a topic was made anew under its name, or a log was cut and has others there."""

    topic_id: str
    """Empty where the brokers know none."""
    partition: int
    offset: int
    checksum: int
    """Of key, value and timestamp, as `keylane.delivery.checksums` has it."""
    key: str = ""
    """What an identity of the user's says of it; never in a log."""


class Step(NamedTuple):
    """One call inside a handler, for one record."""

    record: RecordIdentity
    name: str
    key: str
    """Which one it is of several with the name; empty for the only one."""


class Mark(NamedTuple):
    """From here on the log is this owner's, and nobody else's of before."""

    owner: str


class Piece(NamedTuple):
    """A part of a step's answer, which is there when all its pieces are, one behind the other."""

    step: Step
    number: int
    """From 0 on."""
    pieces: int
    """How many there are."""
    data: bytes


class Forgotten(NamedTuple):
    """The step has no answer any more."""

    step: Step


Entry: TypeAlias = Mark | Piece | Forgotten


def pieces_of(step: Step, answer: bytes, most_bytes: int) -> Sequence[Piece]:
    """An answer in pieces of so many bytes at most; an empty one is a piece, too."""
    starts = range(0, max(len(answer), 1), most_bytes)
    return [Piece(step, number, len(starts), answer[start : start + most_bytes]) for number, start in enumerate(starts)]


def encode(entry: Entry) -> tuple[bytes, bytes]:
    """The key and the value of its record. A step's texts take `MAX_TEXT_BYTES` each."""
    if isinstance(entry, Mark):
        return _HEAD.pack(VERSION, MARK), entry.owner.encode()
    if isinstance(entry, Forgotten):
        return _HEAD.pack(VERSION, FORGOTTEN) + _encoded(entry.step), b""
    key = _HEAD.pack(VERSION, PIECE) + _encoded(entry.step) + _PIECE.pack(entry.number, entry.pieces)
    return key, entry.data


def decode(key: bytes | None, value: bytes | None) -> Entry:
    """What a record says. Raises `StepFormatError`."""
    reader = FieldReader(key or b"")
    try:
        version, kind = reader.numbers(_HEAD)
        if version != VERSION:
            raise StepFormatError(f"a record of steps in version {version}; this release reads version {VERSION}")
        entry = _read(kind, reader, value or b"")
        reader.finish()
    except (FieldError, UnicodeDecodeError) as error:
        raise StepFormatError(f"no record of steps: {error}") from None
    return entry


def _encoded(step: Step) -> bytes:
    record = step.record
    assert not record.key, "it is a store's"
    head = _RECORD.pack(record.partition, record.offset, record.checksum)
    return head + string(record.topic_id) + string(step.name) + string(step.key)


def _read(kind: int, reader: FieldReader, value: bytes) -> Entry:
    if kind == MARK:
        return Mark(value.decode())
    if kind not in (PIECE, FORGOTTEN):
        raise StepFormatError(f"a record of steps of kind {kind}, which this release does not know")
    partition, offset, checksum = reader.numbers(_RECORD)
    step = Step(RecordIdentity(reader.string(), partition, offset, checksum), reader.string(), reader.string())
    if kind == FORGOTTEN:
        return Forgotten(step)
    number, count = reader.numbers(_PIECE)
    if number >= count:
        raise StepFormatError(f"piece {number} of {count} of an answer")
    return Piece(step, number, count, value)
