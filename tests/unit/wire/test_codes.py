"""The table of error codes beside kio's, which is made from Kafka's sources."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from keylane.wire import codes


def test_every_error_of_kafkas_protocol_stands_there_under_its_name() -> None:
    table = {name: value for name, value in vars(codes).items() if isinstance(value, int)}
    assert table == {one.name.upper(): int(one) for one in ErrorCode}
