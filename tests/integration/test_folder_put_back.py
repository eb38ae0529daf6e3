"""A broker's data folder is put back to an older copy under a living member, and new records take the offsets of those
that are lost: the member is told, and nothing of what is in the log now is left out."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.broker import data_folder, leader_epochs
from keylane.broker.process import BrokerProcess
from keylane.errors import PeerError
from keylane.pipeline import topics_of_operations
from keylane.storage.filesystem import OsFileSystem
from keylane.storage.sealed import read_sealed, write_sealed
from kit.operated import OPERATIONS, operate
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = pytest.mark.parametrize("step", [pytest.param(0, id="later epochs"), pytest.param(10**6, id="earlier epochs")])
"""What is put back takes leader epochs that are later than those that are lost, or earlier."""


def raise_epochs(data: Path, step: int) -> None:
    files, path = OsFileSystem(), str(data / data_folder.LEADER_EPOCH)
    write_sealed(files, path, leader_epochs.KIND, read_sealed(files, path, leader_epochs.KIND) + step)


@EPOCHS
@pytest.mark.full
def test_a_folder_that_is_put_back_is_told(tmp_path: Path, step: int) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    ran: list[bytes | None] = []
    with BrokerProcess(data) as broker:
        stage = Stage(broker.bootstrap, "put-back")
        kafka = stage.kafka | {"reconnect.backoff.max.ms": 100}
        commit = kl.Commit(interval_ms=50)
        pipeline = stage.pipeline(lambda record: ran.append(record.value), kafka=kafka, commit=commit)
        stage.create(1)
        stage.fill((None, 0) for _ in range(30))
        member = ThreadMember(pipeline, "living")
        until(lambda: len(ran) == 30 and stage.all_is_committed(), "the first are committed")
        broker.terminate()
        shutil.copytree(data, copy)
        raise_epochs(data, step)
        broker.start()
        stage.fill((None, 0) for _ in range(50))
        until(lambda: len(ran) == 80 and stage.all_is_committed(), "so are those that will be lost")
        broker.kill()
        shutil.rmtree(data)
        copy.rename(data)
        broker.start()
        stage.fill((None, 0) for _ in range(90))
        with pytest.raises(PeerError, match=r"in-put-back-0: .*was the topic made anew, or its log cut\?"):
            member.end()
        ran.clear()
        ThreadMember(pipeline, "restarted", ending_offsets="latest").end()
        assert sorted(ran, key=lambda value: int(value or b"-1")) == [b"%d" % number for number in range(90)]


@EPOCHS
@pytest.mark.full
def test_rules_that_a_copy_lacks_are_written_again_by_who_holds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setenv("KEYLANE_OPERATIONS_TOKEN", OPERATIONS["token"])
    monkeypatch.setattr("keylane.operations.agent.KEEP_S", 0.2)
    data, copy = tmp_path / "data", tmp_path / "copy"
    with BrokerProcess(data) as broker:
        stage = Stage(broker.bootstrap, "ruled")
        commands = topics_of_operations(stage.group)[0]
        stage.create(1)
        kafka = stage.kafka | {"reconnect.backoff.max.ms": 100}
        member = ThreadMember(stage.pipeline(print, kafka=kafka, operations=kl.Operations(**OPERATIONS)), "m")
        try:
            until(lambda: commands in stage.admin.topics(), "it takes commands")
            until(lambda: bool(operate(capsys, stage, "show")["members"]), "it is heard")
            operate(capsys, stage, "hold-key", "--key", "1", "--execute")
            broker.terminate()
            shutil.copytree(data, copy)
            raise_epochs(data, step)
            broker.start()
            until(lambda: bool(operate(capsys, stage, "show")["members"]), "it is heard")
            operate(capsys, stage, "hold-key", "--key", "2", "--execute")
            operate(capsys, stage, "hold-key", "--key", "3", "--execute")
            broker.kill()
            shutil.rmtree(data)
            copy.rename(data)
            broker.start()
            until(lambda: len({record.key for record in stage.read(commands)}) == 3, "the rules are there again")
        finally:
            member.consumer.stop()
            member.end()
