"""What members answer to commands: `Result`, one a command and member. Pure.

A member answers twice under one key: that it has accepted a command, before it does anything, and how that ended. The
topic keeps the last. So of a member that dies in the middle its "accepted" stays, and says that nobody knows the end.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, get_type_hints

from keylane.errors import UsageError
from keylane.foreign_json import has_shape, read_object
from keylane.operations.commands import VERSION, Name, Verb

if TYPE_CHECKING:
    from keylane.operations.commands import Command

State = Literal["accepted", "done", "failed", "refused"]
PREFIX = b"result:"
"""Keys of results begin with it."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one member has to say of one command."""

    command: str
    """Its id."""
    number: int
    verb: Verb
    about: str
    """What the command was about, for people."""
    by: str
    sent_ms: int
    member: str
    state: State
    at_ms: int
    """When the member came to this."""
    text: str = ""
    """Why it failed or was refused."""
    partitions: tuple[Name, ...] | None = None
    """Of a seek that was done: where; a member does it in those that it has."""
    records: tuple[str, ...] | None = None
    """Of single records: which are done, and committed."""

    @classmethod
    def of(
        cls,
        command: Command,
        member: str,
        state: State,
        at_ms: int,
        text: str = "",
        partitions: tuple[Name, ...] | None = None,
        records: tuple[str, ...] | None = None,
    ) -> Result:
        told = (command.id, command.number, command.verb, command.about, command.by, command.sent_ms)
        return cls(*told, member, state, at_ms, text, partitions, records)

    @property
    def key(self) -> bytes:
        """That a member has begun has another one than how it ended: both stay."""
        began = ":accepted" if self.state == "accepted" else ""
        return PREFIX + f"{self.command}:{self.member}{began}".encode()

    def value(self, group: str) -> bytes:
        """As the topic has it."""
        said = {"version": VERSION, "group": group, **asdict(self)}
        if self.records is None:  # whom an older keylane reads, which knows of none
            del said["records"]
        return json.dumps(said).encode()


def read_result(group: str, key: bytes | None, value: bytes | None) -> Result | None:
    """A result of this group's, as the topic has it; None for anything else."""
    if key is None or value is None or not key.startswith(PREFIX):
        return None
    try:
        said = read_object(value)
    except UsageError:
        return None
    if said.pop("version", None) != VERSION or said.pop("group", None) != group or not has_shape(said, _Said):
        return None
    if said.keys() - get_type_hints(_Said).keys():
        return None
    if (names := said["partitions"]) is not None:
        said["partitions"] = tuple((topic, one) for topic, one in names)
    if (records := said.get("records")) is not None:
        said["records"] = tuple(records)
    return Result(**said)


class _Said(TypedDict):
    """A result, as the topic has it."""

    command: str
    number: int
    verb: Verb
    about: str
    by: str
    sent_ms: int
    member: str
    state: State
    at_ms: int
    text: str
    partitions: list[tuple[str, int]] | None
    records: NotRequired[list[str] | None]
