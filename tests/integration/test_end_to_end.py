"""The recipe of docs/delivery.md, from a table to a table, while each of its programs is killed (SIGKILL).

The verdict is Python's own sqlite3 on the table, and another client library (aiokafka) on the topics between.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peers.committed_reader import committed_records

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
NAMES = ("end_to_end_produce", "end_to_end_price", "end_to_end_book")
PARTITIONS = 3
STEP = 300
"""Orders that come before each kill."""
TIMEOUT_S = 60


class Recipe:
    """The three programs in a folder of their own."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self.servers = servers
        self._admin = Admin({"bootstrap.servers": servers})
        self._admin.create_topics({"orders.new": PARTITIONS, "orders.priced": PARTITIONS})
        for name in NAMES:
            text = (ROOT / "examples" / f"{name}.py").read_text()
            (folder / f"{name}.py").write_text(text.replace("127.0.0.1:9092", servers))
        self.orders = 0
        with closing(sqlite3.connect(folder / "outbox.db")) as outbox, outbox:
            outbox.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, text TEXT, sent INTEGER)")
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def order(self, count: int) -> None:
        """So many more orders are to be sent."""
        rows = [(number, f"order {number}", 0) for number in range(self.orders, self.orders + count)]
        self.orders += count
        with closing(sqlite3.connect(self.folder / "outbox.db", timeout=TIMEOUT_S)) as outbox, outbox:
            outbox.executemany("INSERT INTO outbox VALUES (?, ?, ?)", rows)

    def forget(self, count: int) -> None:
        """What a crash between acknowledgement and mark leaves."""
        with closing(sqlite3.connect(self.folder / "outbox.db", timeout=TIMEOUT_S)) as outbox, outbox:
            outbox.execute("UPDATE outbox SET sent = 0 WHERE id < ?", (count,))

    def start(self, name: str) -> None:
        command = [sys.executable, f"{name}.py"]
        if name != NAMES[0]:
            command[1:1] = ["-m", "keylane", "run"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def end(self, name: str, number: signal.Signals | None = None) -> int:
        process = self.running.pop(name)
        if number is not None:
            process.send_signal(number)
        return process.wait(TIMEOUT_S)

    def in_topic(self, topic: str) -> int:
        return sum(
            end or 0
            for end in self._admin.log_ends([(topic, one) for one in range(PARTITIONS)], read_committed=False).values()
        )

    def keys(self, topic: str) -> Counter[bytes]:
        """Of the committed records, by another client."""
        ends = self._admin.log_ends([(topic, one) for one in range(PARTITIONS)], read_committed=False)
        return Counter(one.key for one in committed_records(self.servers, ends))

    def booked(self) -> Counter[tuple[int, str]]:
        """Each row of the table, and how often it is there."""
        if not (self.folder / "bookings.db").exists():
            return Counter()
        with closing(sqlite3.connect(f"file:{self.folder}/bookings.db?mode=ro", uri=True, timeout=TIMEOUT_S)) as table:
            return Counter(table.execute("SELECT id, text FROM bookings").fetchall())

    def progress(self, name: str) -> int:
        """How far a program has come, seen from outside."""
        seen: dict[str, Callable[[], int]] = {
            NAMES[0]: lambda: self.in_topic("orders.new"),
            NAMES[1]: lambda: self.in_topic("orders.priced"),
            NAMES[2]: lambda: self.booked().total(),
        }
        return seen[name]()


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Recipe]:
    with BrokerProcess(tmp_path / "data") as broker:
        made = Recipe(tmp_path, broker.bootstrap)
        yield made
        for name in list(made.running):
            made.end(name, signal.SIGKILL)


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.full), pytest.param(20, marks=pytest.mark.soak)])
def test_each_order_is_booked_once_while_every_program_is_killed(recipe: Recipe, kills: int) -> None:
    expected_text = "{0}: {1} EUR".format
    for name in NAMES[1:]:
        recipe.start(name)
    for victim in NAMES * kills:
        before = recipe.progress(victim)
        recipe.order(STEP)
        recipe.start(NAMES[0])
        until(lambda name=victim, seen=before: recipe.progress(name) > seen, f"{victim} works")  # type: ignore[misc]
        recipe.end(victim, signal.SIGKILL)
        if victim == NAMES[0]:
            recipe.start(victim)
        assert recipe.end(NAMES[0]) == 0
        if victim != NAMES[0]:
            recipe.start(victim)
    recipe.forget(100)
    recipe.start(NAMES[0])
    assert recipe.end(NAMES[0]) == 0
    until(lambda: len(recipe.booked()) == recipe.orders, "all are booked")
    assert {name: recipe.end(name, signal.SIGTERM) for name in NAMES[1:]} == dict.fromkeys(NAMES[1:], 0)
    sent, priced = recipe.keys("orders.new"), recipe.keys("orders.priced")
    assert sent.total() >= recipe.orders + 100, "step 1 has sent some of them twice"
    assert priced == sent, "step 2 has made one price of each record"
    texts = [f"order {number}" for number in range(recipe.orders)]
    once = Counter((number, expected_text(text, len(text))) for number, text in enumerate(texts))
    assert recipe.booked() == once, "each order once, and nothing else"


def test_the_recipe_is_on_the_page() -> None:
    page = (ROOT / "docs" / "delivery.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name for name in NAMES if (ROOT / "examples" / f"{name}.py").read_text() not in shown] == []
