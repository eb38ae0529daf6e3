"""Whose is a static member's name: its own earlier ids and those before it are no other process that came later."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import BrokerUnavailableError, FencedError, PeerError
from keylane.kafka import exact_transactions
from keylane.kafka.instance_name import Holder, InstanceName, read_holder
from keylane.kafka.logs import Patience

if TYPE_CHECKING:
    from types import TracebackType

CLIENT: Any = None


class Coordinator(InstanceName):
    """Has answers, one after the other; a member of its group has `member_id`."""

    def __init__(self, patch: pytest.MonkeyPatch, *answers: str | OSError | None) -> None:
        super().__init__({"bootstrap.servers": "nowhere:1", "group.id": "g", "group.instance.id": "one"})
        self._answers = list(answers)
        self.member_id = "two"
        patch.setattr(exact_transactions, "member", lambda _: self)

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def _holder(self) -> Holder | None:
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return None if answer is None else Holder(answer, None, None)


@pytest.fixture
def patience() -> Patience:
    return Patience("nowhere:1")


def test_an_id_that_it_had_is_its_own(monkeypatch: pytest.MonkeyPatch, patience: Patience) -> None:
    name = Coordinator(monkeypatch, "first", OSError("restarting"), "first")
    name.member_id = "first"
    name.note(CLIENT)
    name.member_id = "second"
    name.check_fence(CLIENT, patience)
    name.check_fence(CLIENT, patience)


def test_an_id_from_before_it_came_is_older(monkeypatch: pytest.MonkeyPatch, patience: Patience) -> None:
    name = Coordinator(monkeypatch, "predecessor", "predecessor", "successor")
    name.look(tuple, patience)
    name.check_fence(CLIENT, patience)
    with pytest.raises(
        FencedError, match=r"FENCED_INSTANCE_ID: member 'one' .* another process has joined .* \(as successor\)"
    ):
        name.check_fence(CLIENT, patience)


def test_a_name_that_nobody_holds_is_free(monkeypatch: pytest.MonkeyPatch, patience: Patience) -> None:
    Coordinator(monkeypatch, None).check_fence(CLIENT, patience)


def test_while_it_joins_anew_the_fence_is_of_what_it_has_given_up(
    monkeypatch: pytest.MonkeyPatch, patience: Patience
) -> None:
    name = Coordinator(monkeypatch)
    name.member_id = ""
    name.check_fence(CLIENT, patience)


def test_without_an_answer_it_ends(monkeypatch: pytest.MonkeyPatch, patience: Patience) -> None:
    name = Coordinator(monkeypatch, OSError("away"), OSError("away"))
    patience.close()
    name.look(tuple, patience)
    with pytest.raises(BrokerUnavailableError, match="member 'one' of group 'g' is fenced: who has the name cannot be"):
        name.check_fence(CLIENT, patience)


def test_the_answer_is_read_field_by_field() -> None:
    def text(value: str) -> bytes:
        return struct.pack(">h", len(value.encode())) + value.encode()

    def sized(what: bytes) -> bytes:
        return struct.pack(">i", len(what)) + what

    assignment = sized(struct.pack(">hi", 0, 1) + text("a") + struct.pack(">iii", 2, 0, 2) + struct.pack(">i", -1))

    def member(*names: str) -> bytes:
        metadata = struct.pack(">hi", 3, 2) + text("a") + text("b") + struct.pack(">i", -1)
        return b"".join(map(text, names)) + sized(metadata) + assignment

    rows = struct.pack(">h", 0) + text("g") + text("Stable") + text("consumer") + text("range") + struct.pack(">i", 3)
    dynamic = text("id-0") + struct.pack(">h", -1) + text("app") + text("/h") + struct.pack(">ii", 0, 0)
    rows += dynamic + member("id-1", "other", "app", "/h") + member("id-2", "one", "äpp", "/10.0.0.7")
    assert read_holder(bytes(4) + struct.pack(">i", 1) + rows, "one") == Holder(
        "id-2", frozenset({"a", "b"}), frozenset({("a", 0), ("a", 2)})
    )
    with pytest.raises(OSError, match="error code 15"):
        read_holder(bytes(8) + struct.pack(">h", 15), "one")
    with pytest.raises(PeerError, match="error code 30"):
        read_holder(bytes(8) + struct.pack(">h", 30), "one")
    with pytest.raises(OSError, match="no description of a group: 2 bytes are due at byte 8 of 8"):
        read_holder(bytes(8), "one")
