"""`keylane store`: what a restored log, or a restored store, lacks, is found and made to run, and nothing else."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROGRAM = """
import keylane as kl

def book(record, context):
    if record.value == b"never":
        raise kl.Fatal("it is never booked")
    context.transaction.execute("INSERT INTO booked VALUES (?)", (record.value.decode(),))

pipeline = kl.Pipeline(
    kafka={{"bootstrap.servers": "{servers}", "group.id": "booking"}}, topics=["orders"], handler=book,
    offset_reset="earliest", on_exhausted=kl.Skip(), delivery=kl.ExactlyOnce("{store}"),
)
"""


class World:
    """A broker, whose folder can be put back, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.backup = folder / "booked.db", folder / "backup.db"
        with closing(sqlite3.connect(self.store)) as database:
            database.execute("CREATE TABLE booked (value text)")
        self.broker = BrokerProcess(folder / "data")
        Admin({"bootstrap.servers": self.broker.bootstrap}).create_topics({"orders": 1})
        self.file = folder / "booking.py"
        self.file.write_text(PROGRAM.format(servers=self.broker.bootstrap, store=self.store))

    def produce(self, values: list[str]) -> None:
        with BulkProducer(self.broker.bootstrap) as producer:
            for value in values:
                producer.produce(Output("orders", key=value.encode(), value=value.encode()))

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": "orders"})
        producer.init_transactions(60)
        producer.begin_transaction()
        yield producer
        producer.commit_transaction(60)

    def keylane(self, *arguments: str, is_right: bool = True) -> str:
        command = [sys.executable, "-m", "keylane", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode == 0) == is_right, done.stdout + done.stderr
        return done.stdout if is_right and "--json" in arguments else done.stdout + done.stderr

    def run(self, *, is_right: bool = True) -> str:
        return self.keylane("run", str(self.file), "--available-now", is_right=is_right)

    def booked(self) -> Counter[str]:
        with closing(sqlite3.connect(self.store)) as database:
            return Counter(value for (value,) in database.execute("SELECT value FROM booked"))

    def back_up_store(self) -> None:
        with closing(sqlite3.connect(self.store)) as database:
            database.execute("VACUUM INTO ?", (str(self.backup),))

    def put_store_back(self) -> None:
        for file in self.folder.glob("booked.db*"):
            file.unlink()
        shutil.move(self.backup, self.store)

    def restart(self, change: Callable[[], object]) -> None:
        """The broker, with something done to its folder in between."""
        self.broker.terminate()
        change()
        self.broker.start()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.broker.terminate()


def numbers(begin: int, end: int, what: str = "order") -> list[str]:
    return [f"{what} {number}" for number in range(begin, end)]


def test_of_a_folder_that_was_put_back_exactly_the_new_records_run(world: World) -> None:
    data, backup = world.folder / "data", world.folder / "backup"
    world.produce(numbers(0, 40))
    world.run()
    world.restart(lambda: shutil.copytree(data, backup))
    world.produce(numbers(40, 80))
    world.run()
    world.restart(partial(put_back, backup, data))
    world.produce(numbers(0, 50, "new"))
    assert "what was processed below 80 is purged from the store" in world.run(is_right=False)
    said = world.keylane("store", "check", str(world.file), is_right=False)
    assert "the store has not 50 records that count as done" in said
    (found,) = planned(world)
    assert (found["other_log_from"], found["missing"], found["new_offset"]) == (40, 50, 40)
    assert "what was processed below 80" in world.run(is_right=False), "without --execute nothing is changed"
    world.keylane("store", "forget", str(world.file), "--execute")
    world.keylane("store", "check", str(world.file))
    world.run()
    assert world.booked() == Counter(numbers(0, 80) + numbers(0, 50, "new"))


def test_a_folder_that_was_put_back_without_new_records_goes_on_where_the_store_is(world: World) -> None:
    """The log has what it had, and the group's commits went back alone."""
    data, backup = world.folder / "data", world.folder / "backup"
    world.produce(numbers(0, 40))
    world.restart(lambda: shutil.copytree(data, backup))
    world.run()
    world.restart(partial(put_back, backup, data))
    assert "what was processed below 40 is purged from the store" in world.run(is_right=False)
    (found,) = planned(world)
    assert (found["other_log_from"], found["missing"], found["new_offset"]) == (None, 0, 40)
    world.keylane("store", "forget", str(world.file), "--execute")
    world.produce(numbers(40, 50))
    world.run()
    assert world.booked() == Counter(numbers(0, 50))


def test_below_where_a_group_was_set_back_nothing_runs_again(world: World) -> None:
    """All was purged at once, so that no sample says where the log became another one; who has set it back knows."""
    data, backup = world.folder / "data", world.folder / "backup"
    world.produce(numbers(0, 40))
    world.restart(lambda: shutil.copytree(data, backup))
    world.produce(numbers(40, 80))
    world.run()
    world.restart(partial(put_back, backup, data))
    world.produce(numbers(0, 50, "new"))
    world.keylane("groups", "reset", "booking", "--to-offset", "40", "--topic", "orders",
                  "--bootstrap", world.broker.bootstrap, "--execute")  # fmt: skip
    assert "what was processed below 80 is purged from the store" in world.run(is_right=False)
    world.keylane("store", "forget", str(world.file), "--execute")
    world.run()
    assert world.booked() == Counter(numbers(0, 80) + numbers(0, 50, "new"))


def test_a_store_of_before_a_log_was_cut_has_none_of_the_records_that_came_since(world: World) -> None:
    """Where the store has its one sample of what is purged, the log of now has the end of a transaction."""
    data, backup = world.folder / "data", world.folder / "backup"
    world.produce(numbers(0, 20))
    world.restart(lambda: shutil.copytree(data, backup))
    world.produce(numbers(20, 40))
    world.run()
    world.back_up_store()
    world.restart(partial(put_back, backup, data))
    world.produce(numbers(0, 18, "new"))
    with world.transaction() as producer:
        producer.produce("orders", b"new 18", b"new 18")
    world.produce(numbers(19, 30, "new"))
    world.run(is_right=False)
    world.keylane("store", "forget", str(world.file), "--execute")
    world.run()
    assert world.booked() == Counter(numbers(0, 40) + numbers(0, 30, "new"))
    world.put_store_back()
    assert "that this store has not seen" in world.run(is_right=False)
    (found,) = planned(world)
    assert (found["other_log_from"], found["missing"], found["unsure"]) == (20, 30, 0)
    world.keylane("store", "forget", str(world.file), "--execute")
    world.run()
    assert world.booked() == Counter(numbers(0, 40) + numbers(0, 30, "new"))


def put_back(backup: Path, data: Path) -> None:
    shutil.rmtree(data)
    shutil.move(backup, data)


def planned(world: World) -> list[dict[str, Any]]:
    report = json.loads(world.keylane("store", "forget", str(world.file), "--json"))
    assert report["executed"] is False
    partitions: list[dict[str, Any]] = report["partitions"]
    return partitions


def test_what_a_restored_store_has_lost_runs_and_what_was_skipped_does_not_stand_in_the_way(world: World) -> None:
    world.produce([*numbers(0, 20), "never", *numbers(20, 40)])
    world.run()
    world.back_up_store()
    world.produce(numbers(40, 80))
    world.run()
    world.put_store_back()
    said = world.run(is_right=False)
    assert "has 40 offsets of orders-0 complete, from 41 on, that this store has not seen" in said
    (found,) = planned(world)
    assert (found["other_log_from"], found["missing"], found["new_offset"]) == (None, 40, 41)
    world.keylane("store", "forget", str(world.file), "--execute")
    world.run()
    assert world.booked() == Counter(numbers(0, 80))


def test_what_retention_has_taken_in_the_meantime_is_told_and_the_rest_runs(world: World) -> None:
    world.produce(numbers(0, 20))
    world.run()
    world.back_up_store()
    world.produce(numbers(20, 60))
    world.run()
    world.put_store_back()
    Admin({"bootstrap.servers": world.broker.bootstrap}).delete_records({("orders", 0): 60})
    world.produce(numbers(60, 70))
    world.run(is_right=False)
    (found,) = planned(world)
    assert (found["missing"], found["gone"], found["new_offset"]) == (0, 40, 60)
    assert "of 40 offsets more" in world.keylane("store", "check", str(world.file), is_right=False)
    assert "of 40 offsets more" in world.keylane("store", "forget", str(world.file), "--execute")
    world.run()
    assert world.booked() == Counter([*numbers(0, 20), *numbers(60, 70)])


def test_an_offset_that_an_operator_has_set_is_accepted(world: World) -> None:
    world.produce(numbers(0, 20))
    world.run()
    world.produce(numbers(20, 40))
    world.keylane("groups", "reset", "booking", "--to-offset", "30", "--bootstrap", world.broker.bootstrap, "--execute")
    assert "has 10 offsets of orders-0 complete, from 20 on" in world.run(is_right=False)
    world.keylane("store", "accept", str(world.file), "--execute")
    world.run()
    assert world.booked() == Counter(numbers(0, 20) + numbers(30, 40))
