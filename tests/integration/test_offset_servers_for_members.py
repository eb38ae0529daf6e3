"""keylane's own consumers with `offsets.servers`: their group is at offset servers, their records at the brokers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.coordinator.formats import partition_for
from keylane.kafka.admin import Admin
from keylane.kafka.sole_member import SoleMember
from kit.ledger import Ledger
from kit.offset_servers import OffsetServers, pace, peers_of, ports_of
from kit.processes import Stopwatch
from kit.stage import Member, Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.ledger import Look
    from kit.offset_servers import OffsetServer

PARTITIONS = 4
OPTIONS = (
    "--allow-unreplicated-log", "--set", f"offsets.topic.num.partitions={PARTITIONS}", *pace(300, 6_000)
)  # fmt: skip
RECORDS = 8_000
KEYS = 16
WORK_S = 0.02
"""With as many keys the whole takes 10 s and more: longer than a server takes to die."""
MORE = 200


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OffsetServers]:
    with BrokerProcess(tmp_path / "data") as log, OffsetServers(log.bootstrap, tmp_path, 2, *OPTIONS) as servers:
        servers.settled()
        yield servers


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetServers]:
    """A single server, which leads everything."""
    folder = tmp_path_factory.mktemp("one")
    with BrokerProcess(folder / "data") as log, OffsetServers(log.bootstrap, folder, 1, *OPTIONS) as servers:
        servers.settled()
        yield servers


def leader_of(servers: OffsetServers, group: str) -> OffsetServer:
    leads = servers.settled()
    partition = partition_for(group, PARTITIONS)
    return next(one for one in servers.running if partition in leads[one.address])


def groups_at(bootstrap: str) -> set[str]:
    return {one.group for one in Admin({"bootstrap.servers": bootstrap}).groups()}


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_servers_and_members_die_and_nothing_is_lost_or_run_again(
    servers: OffsetServers, tmp_path: Path, protocol: str
) -> None:
    """Two members, of which one is killed, and so is the server that leads their group."""
    stage = Stage(servers.log, f"apart-{protocol}", servers.bootstrap)
    kafka = stage.kafka
    if protocol == "consumer":
        of_classic = ("session.timeout.ms", "heartbeat.interval.ms")
        kafka = {name: value for name, value in kafka.items() if name not in of_classic} | {"group.protocol": protocol}
    stage.create(PARTITIONS)
    stage.fill((b"%d" % (number % KEYS), number % KEYS % PARTITIONS) for number in range(RECORDS))
    ledger = Ledger(tmp_path / "ledger")
    looks: list[Look] = []

    def member() -> Member:
        return Member(kafka=kafka, topic=stage.topic, ledger=str(ledger.path), work_s=WORK_S)

    def look() -> None:
        found = stage.committed()
        looks.append((ledger.length(), found))

    def committed() -> int:
        return sum(one.base for one in stage.committed().values())

    def goes_on() -> None:
        """Commits are made."""
        enough = committed() + MORE
        until(lambda: committed() >= enough, f"{MORE} more records are committed")

    with member() as first, member() as second:
        goes_on()
        assert peers_of(first.process.pid) & ports_of(servers.log), "it reads from the broker itself"
        victim = leader_of(servers, stage.group)
        look()
        servers.kill(victim)
        goes_on()
        look()
        servers.add(victim.port)
        look()
        first.kill()
        ledger.died(first.name)
        with member() as third:
            look()
            goes_on()
            look()
            second.end()
            third.end()
    assert stage.all_is_committed()
    records = stage.sources()
    assert len(records) == RECORDS
    assert ledger.done_times().keys() == dict(records).keys(), "nothing is lost"
    assert ledger.disorders("key", records) == []
    assert ledger.run_again(looks, "key") == [], "acknowledged work"
    assert stage.group in groups_at(servers.bootstrap)
    assert stage.group not in groups_at(servers.log), "the brokers' own coordinator knows the group"
    assert "Traceback" not in servers.told()


def test_a_store_of_exactly_once_forgets_what_the_group_has_committed_there(one: OffsetServers, tmp_path: Path) -> None:
    stage = Stage(one.log, "stored", one.bootstrap)
    stage.create(2)
    stage.fill((b"%d" % number, number % 2) for number in range(200))
    path = tmp_path / "store.db"
    sqlite3.connect(path).execute("CREATE TABLE seen (part INTEGER, at INTEGER)").connection.close()

    def keep(record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("INSERT INTO seen VALUES (?, ?)", (record.partition, record.offset))

    stage.run(keep, delivery=kl.ExactlyOnce(str(path)))
    stage.admin.commit_offsets(stage.group, {(stage.topic, 0): 0, (stage.topic, 1): 0})
    with pytest.raises(kl.PeerError, match="what was processed below 100 is purged from the store"):
        stage.run(keep, delivery=kl.ExactlyOnce(str(path)))
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT COUNT(*), COUNT(DISTINCT part * 1000 + at) FROM seen").fetchone() == (200, 200)
    assert stage.group not in groups_at(one.log)


def test_partitions_by_hand(one: OffsetServers) -> None:
    stage = Stage(one.log, "by-hand", one.bootstrap)
    stage.create(1)
    stage.fill((b"k", 0) for _ in range(20))
    seen: list[int] = []
    stage.run(lambda record: seen.append(record.offset), topics=kl.Partitions([(stage.topic, 0)]))
    assert seen == list(range(20))
    assert stage.all_is_committed()
    assert stage.group not in groups_at(one.log)


def test_a_broker_in_the_place_of_an_offset_server_is_refused(one: OffsetServers) -> None:
    """It would take all commits without an error."""
    stage = Stage(one.log, "wrong", one.log)
    stage.create(1)
    said = r"there is no offset server, and commits would go to that broker"
    with pytest.raises(kl.UsageError, match=said):
        stage.run(print)
    with pytest.raises(kl.UsageError, match=said):  # the driver's, of a DataFrame
        SoleMember(stage.kafka, [stage.topic], "driver")


def test_offset_servers_of_another_cluster_are_refused(one: OffsetServers, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "other") as other:
        stage = Stage(other.bootstrap, "other", one.bootstrap)
        stage.create(1)
        with pytest.raises(kl.UsageError, match=r"belong to the cluster .* give offset servers whose --log is"):
            stage.run(print)


@pytest.mark.full
def test_offset_servers_that_do_not_answer_are_named(one: OffsetServers) -> None:
    stage = Stage(one.log, "nobody", "127.0.0.1:1")
    stage.create(1)
    watch = Stopwatch()
    with pytest.raises(kl.BrokerUnavailableError, match=r"at '127\.0\.0\.1:1' .* check offsets\.servers"):
        stage.run(print)
    assert watch.took_s() < 30


def test_the_command_line_takes_them(one: OffsetServers, tmp_path: Path) -> None:
    stage = Stage(one.log, "cli", one.bootstrap)
    stage.create(1)
    stage.fill((b"k", 0) for _ in range(7))
    file = tmp_path / "flights.py"
    file.write_text(
        "import keylane as kl\n"
        f"kafka = {{'bootstrap.servers': {one.log!r}, 'group.id': {stage.group!r}}}\n"
        f"flights = kl.Pipeline(kafka=kafka, topics=[{stage.topic!r}], handler=lambda record: None, "
        "offset_reset='earliest')\n"
    )
    run = (str(file), "--available-now", "--offsets-servers", one.bootstrap)
    assert "7 records processed" in _keylane("run", *run)
    assert stage.all_is_committed()
    places = ("--bootstrap", one.log, "--offsets-servers", one.bootstrap)
    assert stage.group in _keylane("groups", "list", *places)
    assert stage.group not in _keylane("groups", "list", "--bootstrap", one.log)
    assert "COMMITTED" in _keylane("groups", "describe", stage.group, *places)
    reset = ("--to-earliest", "--execute")
    _keylane("groups", "reset", stage.group, *places, *reset)
    assert {at.base for at in stage.committed().values()} == {0}
    _keylane("run", *run)
    record = f"{stage.topic}:0@3"
    _keylane("records", "replay", stage.group, record, *places, "--execute")
    assert not stage.all_is_committed()


def _keylane(*arguments: str) -> str:
    command = [sys.executable, "-m", "keylane", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
