"""`python -O` leaves asserts out: what users, files and peers give is checked all the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import keylane

SOURCES = Path(keylane.__file__).parent
PURE = {"isinstance", "len", "any", "all", "callable", "values"}
REFUSALS = r"""
import tempfile
from pathlib import Path

import keylane as kl
from keylane.broker.config import BrokerConfig, parse_config
from keylane.broker.process import BrokerProcess
from keylane.demo.rows import row_of
from keylane.kafka.login import Login, exchange
from keylane.offsets import OffsetMap, decode
from keylane.records import PlainMessage
from keylane.spark import CarryOver
from keylane.storage.sealed import seal, unseal
from keylane.wire.batches import decode_records, encode_batch, NewRecord


def an_answer_that_is_none():
    messages = exchange(Login(None, "SCRAM-SHA-256", "user", "pencil"), "nonce")
    next(messages)
    messages.send(b"r=nonce")


data = tempfile.TemporaryDirectory()
broker = BrokerProcess(Path(data.name) / "data")
for refusal in (
    lambda: parse_config({"keylane.owned.offsets.partitions": "60"}),
    lambda: BrokerConfig(num_partitions=0),
    broker.start,
    lambda: (broker.terminate(), broker.pid),
    lambda: CarryOver("/lists").collected(0),
    lambda: row_of(kl.Record(PlainMessage("flights", 0, 7, None, None))),
    an_answer_that_is_none,
    lambda: OffsetMap(5, [3], 9),
    lambda: decode("bAAL", 3),
    lambda: unseal(seal("topics", b"[]")[:-2] + b"}\n", "topics.json", "topics"),
    lambda: decode_records(encode_batch([NewRecord(b"k", b"v")], timestamp_ms=1)[:-1]),
    lambda: kl.Pipeline(kafka={}, topics=["a"], handler=print),
):
    try:
        print("NOT REFUSED", refusal())
    except kl.KeylaneError as error:
        print(error)
data.cleanup()
"""


def test_what_is_refused_is_refused_without_asserts() -> None:
    run = subprocess.run([sys.executable, "-O", "-c", REFUSALS], check=True, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("NOT REFUSED")] == []
    assert len(lines) == 12, lines


def test_an_assert_does_nothing() -> None:
    """What it calls would not be called without it."""
    found = []
    for path in SOURCES.rglob("*.py"):
        if path.parent.name == "testing":
            continue  # contracts that users' tests run
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                calls = [one for one in ast.walk(node.test) if isinstance(one, ast.Call)]
                found += [
                    f"{path.name}:{node.lineno}: {ast.unparse(one)}"
                    for one in calls
                    if getattr(one.func, "id", getattr(one.func, "attr", "")) not in PURE
                ]
    assert found == []
