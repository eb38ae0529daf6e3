"""`keylane operate`: what is refused before anything is sent, and when a drain is through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import keylane as kl
from keylane.cli import main
from keylane.consumer.events import Pause
from keylane.consumer.snapshot import PartitionSnapshot
from keylane.desk.commands import busy, is_drained
from keylane.operations.commands import Command, Holding
from keylane.operations.reports import Members, Seen

if TYPE_CHECKING:
    from keylane.operations.reports import Report


def seen(command: int, **changed: Any) -> Seen:
    part = PartitionSnapshot("t", 0, 5, 5, 4, 0, 5, 5)._replace(**changed)
    report = {
        "command": command,
        "interval_ms": 2_000,
        "holding": Holding().to_dict(),
        "snapshot": kl.Snapshot(partitions=(part,)).to_dict(),
    }
    return Seen(cast("Report", report), 0)


def test_a_drain_waits_for_a_report_that_was_made_after_the_pause() -> None:
    command = Command("c", "g", 4, 0, "ops", Pause(None))
    members = Members("g", {"a": seen(3), "b": seen(4), "c": seen(5, in_handlers=1)})
    assert busy(members, command, ["a", "b", "c", "ended meanwhile"]) == ["a", "c"]


@pytest.mark.parametrize(
    ("changed", "names", "drained"),
    [
        ({}, None, True),
        ({"in_handlers": 1}, None, False),
        ({"uncommitted": True}, None, False),
        ({"in_handlers": 1}, [("t", 1)], True),
        ({"in_handlers": 1}, [("t", 0)], False),
    ],
)
def test_drained_is_what_has_nothing_in_handlers_and_nothing_to_commit(
    changed: dict[str, Any], names: list[tuple[str, int]] | None, drained: bool
) -> None:
    assert is_drained(seen(1, **changed), names) is drained


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["adjust", "g"], "adjust: give --max-concurrency, a rate, or --as-in-pipeline alone"),
        (["adjust", "g", "--per-key", "1", "--as-in-pipeline"], "or --as-in-pipeline alone"),
        (["adjust", "g", "--per-key", "many"], "--per-key many: give records a second, or unlimited"),
        (["seek", "g", "--to-latest"], "seek: name what to seek in with --topic"),
        (["pause", "g", "--wait-ms", "-1"], "--wait-ms -1: give a whole number of at least 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_broker_is_asked(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYLANE_OPERATIONS_TOKEN", "")
    assert main(["operate", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err


def test_a_token_that_is_too_short_is_refused_and_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kl.UsageError, match="shorter than 16 characters") as raised:
        kl.Operations(token="hunter2")
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(kl.Operations(token="hunter2hunter2hunter2"))
