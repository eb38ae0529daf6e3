"""Whether the records of a batch can be read: every field of every record is passed, and none is kept.

A batch of a megabyte may hold a hundred thousand records, and unpack to a thousand times its size. So it is walked in
steps of a few milliseconds at most, between which the caller may do something else, and holds one piece at a time of
what it unpacks to.

The idea: records of the usual form that lie whole in one piece are passed by one plain loop, which stops at the first
that is not so. That one is read field by field, over the ends of pieces, and is refused with the reason if it has to
be. Most producers send many records of one size and form: behind a record, all that have the same bytes at the places
of its lengths are passed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.batches import HEADER_SIZE, SNAPPY, BatchError, unpacked
from keylane.wire.primitives import read_varint

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from keylane.wire.batches import BatchHeader

STEP_RECORDS = 4_096
LEAST_UNLIKE = 32
ALIKE_BYTES = 128 * 1024
"""What is looked at together: it is gone through once for each length, which is quick while it is in the cache."""
MAX_NOTED = 1_000
"""Records that are noted as wrong: more would tell nobody more, and the answer to their producer grows with them."""
NULL = -1
"""The length of a field that is not there."""
NO_TIMESTAMP = -1
_INT32_BYTES, _INT64_BYTES = 5, 10
"""Of the longest varints."""


class Wanted(NamedTuple):
    """What a topic wants of records, beside that they can be read."""

    has_keys: bool = False
    times_ms: tuple[int, int] | None = None
    """The earliest and the latest timestamp."""


class RecordWalk:
    """Through one batch whose header holds. After the last step it knows which records the topic does not want."""

    def __init__(self, batch: bytes, header: BatchHeader, wanted: Wanted) -> None:
        self.keyless: list[int] = []
        """Numbers of records that lack a key; not more than `MAX_NOTED`."""
        self.out_of_time: list[tuple[int, int]] = []
        """Numbers and timestamps of records; not more than `MAX_NOTED`."""
        self._header = header
        self._wanted = wanted
        self._number = 0
        self._unlike = LEAST_UNLIKE
        """Records that are passed one by one before it is tried again whether many are alike."""
        self._passed = 0
        """Bytes of the pieces before this one."""
        self._piece, self._at = batch, HEADER_SIZE
        self._pieces: Iterator[bytes] = iter(())
        self.largest_block = 0
        """Bytes of the records that can only be unpacked in one step, at most."""
        if header.codec:
            body = batch[HEADER_SIZE:]
            self._piece, self._at = b"", 0
            self._pieces = unpacked(header.codec, body)
            if header.codec == SNAPPY:
                self.largest_block = _largest_snappy_block(body)

    @property
    def size(self) -> int:
        """Bytes of records that were unpacked so far."""
        return self._passed + len(self._piece)

    def steps(self) -> Iterator[None]:
        """One step after the other. Raises `BatchError`."""
        while self._number < self._header.record_count:
            if self._wanted.times_ms is None:
                self._pass_usual()
                yield
            if self._number < self._header.record_count:
                yield from self._pass_one()
                yield
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._passed += len(self._piece)
            self._piece, self._at = piece, 0
            yield
        raise BatchError(f"bytes are left behind the {self._header.record_count} records of a batch")

    def _pass_usual(self) -> None:
        """A step, or less where a record is not usual, or reaches beyond the piece."""
        last = min(self._header.record_count, self._number + STEP_RECORDS)
        while self._number < last:
            start = self._at
            if not self._pass_plainly(1):
                return
            if self._pass_alike(start, last):
                self._unlike = LEAST_UNLIKE
            else:
                count = min(self._unlike, last - self._number)
                self._unlike = min(2 * self._unlike, STEP_RECORDS)
                if self._pass_plainly(count) < count:
                    return

    def _pass_alike(self, start: int, last: int) -> bool:
        """Those behind the record that starts there, and was passed, that have its form; whether there were any."""
        piece, size = self._piece, self._at - start
        is_keyless = bool(self.keyless) and self.keyless[-1] == self._number - 1
        form = _form(piece, start)
        first = self._number
        while count := min(last - self._number, (len(piece) - self._at) // size, max(ALIKE_BYTES // size, 1)):
            if not _have_form(piece, self._at, self._at + count * size, size, form):
                break
            self._at += count * size
            self._number += count
        if is_keyless:
            self.keyless += range(first, min(self._number, first + MAX_NOTED - len(self.keyless)))
        return self._number > first

    def _pass_plainly(self, most: int) -> int:
        """How many."""
        keyless: list[int] = []
        count, self._at = _pass_usual(self._piece, self._at, most, keyless if self._wanted.has_keys else None)
        room = MAX_NOTED - len(self.keyless)
        self.keyless += [self._number + one for one in keyless if one < count][:room]
        self._number += count
        return count

    def _pass_one(self) -> Iterator[None]:
        """One record, whatever its form, over the ends of pieces."""
        size = self._number_of(_INT32_BYTES)
        begin = self._passed + self._at
        self._byte()  # attributes: none are defined
        time_ms = self._header.base_timestamp + self._number_of(_INT64_BYTES)
        self._number_of(_INT32_BYTES)
        has_key = yield from self._pass_field("key")
        yield from self._pass_field("value")
        headers = self._number_of(_INT32_BYTES)
        if headers < 0:
            raise self._fault(f"{headers} headers")
        for _ in range(headers):
            if not (yield from self._pass_field("header's name")):
                raise self._fault("a header without a name")
            yield from self._pass_field("header's value")
        if (read := self._passed + self._at - begin) != size:
            raise self._fault(f"{size} bytes by its length and {read} by its fields")
        self._note(time_ms, has_key=has_key)
        self._number += 1

    def _note(self, time_ms: int, *, has_key: bool) -> None:
        if self._wanted.has_keys and not has_key and len(self.keyless) < MAX_NOTED:
            self.keyless.append(self._number)
        if self._wanted.times_ms is None or time_ms == NO_TIMESTAMP:
            return
        earliest, latest = self._wanted.times_ms
        if not earliest <= time_ms <= latest and len(self.out_of_time) < MAX_NOTED:
            self.out_of_time.append((self._number, time_ms))

    def _pass_field(self, what: str) -> Generator[None, None, bool]:
        """Whether it is there."""
        size = self._number_of(_INT32_BYTES)
        if size < NULL:
            raise self._fault(f"a {what} of {size} bytes")
        while size > (left := len(self._piece) - self._at):
            size -= left
            self._next_piece()
            yield
        self._at += max(size, 0)
        return size != NULL

    def _number_of(self, most_bytes: int) -> int:
        """A varint."""
        raw = 0
        for place in range(most_bytes):
            byte = self._byte()
            raw |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
        raise self._fault(f"a number of more than {most_bytes} bytes")

    def _byte(self) -> int:
        while self._at >= len(self._piece):
            self._next_piece()
        self._at += 1
        return self._piece[self._at - 1]

    def _next_piece(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise self._fault("more bytes than the batch")
        self._passed += len(self._piece)
        self._piece, self._at = piece, 0

    def _fault(self, what: str) -> BatchError:
        return BatchError(f"record {self._number} of {self._header.record_count} in a batch has {what}")


def _pass_usual(piece: bytes, at: int, most: int, keyless: list[int] | None) -> tuple[int, int]:  # noqa: C901 - a call for each field would take as long as all the rest
    """How many records were passed, and the position behind them: those that lie whole in the piece, and whose varints
    are no longer than usual. `keyless` takes the numbers of those without a key, and maybe one that was not passed."""
    start, end = at, len(piece)
    number = 0
    try:
        for number in range(most):
            size, at = piece[at], at + 1
            if size > 0x7F:
                if piece[at] > 0x7F:
                    return number, start
                size, at = size & 0x7F | piece[at] << 7, at + 1
            behind = at + (size >> 1)
            if size & 1 or behind > end:
                return number, start
            at += 2 if piece[at + 1] < 0x80 else 3  # attributes, and the timestamp's difference
            if piece[at - 1] > 0x7F:
                return number, start
            if piece[at] > 0x7F:  # the offset's difference
                at += 1 if piece[at + 1] < 0x80 else 2
                if piece[at] > 0x7F:
                    return number, start
            size, at = piece[at + 1], at + 2
            if size == 1:
                if keyless is not None:
                    keyless.append(number)
            elif size > 0x7F or size & 1:
                return number, start
            else:
                at += size >> 1
            size, at = piece[at], at + 1
            if size > 0x7F:
                if piece[at] > 0x7F:
                    return number, start
                size, at = size & 0x7F | piece[at] << 7, at + 1
            if size != 1:
                if size & 1:
                    return number, start
                at += size >> 1
            if piece[at]:
                at = _behind_headers(piece, at)
            if at + 1 != behind:
                return number, start
            start = at = behind
    except IndexError:
        return number, start
    return most, start


_IS_CONTINUED = bytes(byte >> 7 for byte in range(256))
"""Of a byte of a varint: whether another one follows."""


Form = tuple[list[tuple[int, int]], list[tuple[int, bool]]]


def _have_form(piece: bytes, at: int, end: int, size: int, form: Form) -> bool:
    """Whether all records from `at` to `end`, each of this size, have the form."""
    count = (end - at) // size
    lengths, numbers = form
    return all(piece[at + place : end : size].count(byte) == count for place, byte in lengths) and all(
        piece[at + place : end : size].translate(_IS_CONTINUED).count(goes_on) == count for place, goes_on in numbers
    )


def _form(piece: bytes, start: int) -> Form:
    """Of the record that starts there: the places, from its start, of the bytes of its lengths, and what they are; and
    of its other numbers, and whether another byte follows."""
    lengths: list[int] = []
    numbers: list[int] = []

    def pass_number(at: int, places: list[int]) -> tuple[int, int]:
        value, behind = read_varint(piece, at)
        places += range(at, behind)
        return value, behind

    def pass_field(at: int) -> int:
        size, at = pass_number(at, lengths)
        return at + max(size, 0)

    _, at = pass_number(start, lengths)
    _, at = pass_number(at + 1, numbers)  # the time, behind the attributes
    _, at = pass_number(at, numbers)  # the offset
    at = pass_field(pass_field(at))
    headers, at = pass_number(at, lengths)
    for _ in range(2 * headers):
        at = pass_field(at)
    return [(at - start, piece[at]) for at in lengths], [(at - start, piece[at] > 0x7F) for at in numbers]


def _largest_snappy_block(body: bytes) -> int:
    from keylane.wire.packing import largest_snappy_block

    return largest_snappy_block(body)


def _behind_headers(piece: bytes, at: int) -> int:
    """The position of the last byte of a record's headers, each length of which is of one byte; any other position
    otherwise. Raises `IndexError`."""
    count, at = piece[at], at + 1
    if count & 1 or count > 0x7F:
        return -1
    for _ in range(count >> 1):
        size = piece[at]
        if size > 0x7F or size & 1:
            return -1
        at += 1 + (size >> 1)
        size = piece[at]
        if size > 0x7F or (size & 1 and size != 1):
            return -1
        at += 1 + (size >> 1)  # of null: nothing
    return at - 1
