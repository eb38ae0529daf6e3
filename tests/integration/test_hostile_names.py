"""What others wrote, on a terminal: names, metadata, keys and values with control characters, through each command."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import keylane as kl
import keylane.testing
from keylane.cli.logs import log_to_stderr
from keylane.cli.main import main, report

if TYPE_CHECKING:
    from collections.abc import Iterator

FORGED = "payments  stable"
HOSTILE = f"\x1b[31mred\x07\r\n{FORGED}\x9b2J\u202egnp"
"""Colours, a bell, a line of its own, a C1 control, and letters from right to left."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with keylane.testing.broker(topics={"in": 1, "dead": 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        headers: list[tuple[str, str | bytes | None]] = [
            ("keylane.topic", b"in"),
            ("keylane.error.text", HOSTILE.encode()),
        ]
        producer.produce("in", HOSTILE, HOSTILE, headers=[(HOSTILE, HOSTILE.encode())])
        producer.produce("in", b"")
        producer.produce("dead", HOSTILE, HOSTILE, headers=headers)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": HOSTILE})
        consumer.commit(offsets=[TopicPartition("in", 0, 1, HOSTILE)], asynchronous=False)
        consumer.close()
        yield broker.bootstrap_servers


@pytest.mark.parametrize(
    "command",
    [
        ["groups", "list"],
        ["groups", "describe", HOSTILE],
        ["groups", "offsets", HOSTILE],
        ["groups", "map", HOSTILE],
        ["groups", "reset", HOSTILE, "--to-earliest"],
        ["groups", "delete", HOSTILE],
        ["groups", "describe", HOSTILE + "2"],
        ["records", "show", HOSTILE, "in:0@0", "--payload"],
        ["records", "skip", HOSTILE, "in:0@0", "--by", HOSTILE],
        ["topics", "describe", HOSTILE],
        ["dlq", "list", "dead", "--payload"],
        ["dlq", "redrive", "dead"],
        ["operate", "show", HOSTILE],
        [HOSTILE],
    ],
    ids=lambda words: " ".join(word for word in words if HOSTILE not in word) or "no command",
)
def test_no_control_character_reaches_the_terminal(
    command: list[str], servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = [] if command == [HOSTILE] else ["--bootstrap-server", servers]
    main([*command, *server])
    said = "".join(capsys.readouterr())
    assert said, "it says something"
    assert said.replace("\n", "").isprintable()
    assert not any(line.startswith(FORGED) for line in said.splitlines()), "a row that nobody wrote"


def test_json_has_the_names_as_they_are(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", "list", "--json", "--bootstrap-server", servers]) == 0
    assert HOSTILE in [one["group"] for one in json.loads(capsys.readouterr().out)["groups"]]


def test_a_log_line_and_an_error_escape_what_others_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(verbose=False)
    logging.getLogger("keylane.test").warning("the group %s\nhas two lines", HOSTILE.replace("\n", ""))
    report(kl.UsageError(HOSTILE))
    said = capsys.readouterr().err
    assert said.replace("\n", "").isprintable()
    assert said.count("\n") == 3
