"""One budget for many processes, some of which are killed: judged by a count of its own."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # they are there
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import keylane as kl
from keylane.budgets import client as client_module
from keylane.budgets import purse
from keylane.budgets.client import BudgetClient
from keylane.budgets.entries import Ask, Settlement, decode
from keylane.cli import main
from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.limits import ONE, AtOnce, Budget, Cap, Per
from keylane.records import Output
from keylane.testing import EmbeddedBroker
from kit import budget_member
from kit.budget_member import BUDGET, SLOTTED, spent_in
from kit.either_broker import either_broker
from kit.filling import filling
from kit.simulated_budget import most_in_any
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
S = 1_000_000_000
RATE_S, BURST = 400, 200
CLOCKS_MS = 20
"""What the brokers' clock, in milliseconds, and the members' may differ by meanwhile."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as kafka:
        yield kafka


@pytest.mark.full
@pytest.mark.parametrize("kind", ["keylane", "apache"])
def test_members_that_are_killed_spend_no_more_than_the_budget(kind: str, tmp_path: Path) -> None:
    with either_broker(kind, tmp_path) as kafka, ExitStack() as ended:
        files = [tmp_path / f"member-{number}" for number in range(4)]

        def start(number: int) -> subprocess.Popen[bytes]:
            process = budget_member.start(kafka.bootstrap, files[number], number)
            ended.callback(process.wait)
            ended.callback(process.kill)
            return process

        def spent() -> int:
            return sum(amount for file in files for _, amount in spent_in(file))

        members = [start(number) for number in range(3)]
        until(lambda: all(any(spent_in(file)) for file in files[:3]), "each of them spends")
        members[0].kill()
        start(3)
        until(lambda: any(spent_in(files[3])), "one that starts later spends, too")
        goal = spent() + 4 * RATE_S
        until(lambda: spent() >= goal, "they go on")
        for member in members[1:]:
            assert member.stdin is not None
            member.stdin.close()
            assert member.wait(60) == 0
    events = [one for file in files for one in spent_in(file)]
    assert max(amount for _, amount in events) > 100, "large ones have their turn"
    for window_ms in (0, 500, 2_000):
        leases_ms = 2 * BUDGET.lease_ms + CLOCKS_MS
        most = most_in_any(window_ms * 1_000_000, events)
        assert most <= RATE_S * (window_ms + leases_ms) // 1_000 + BURST


@pytest.mark.full
@pytest.mark.parametrize("kind", ["keylane", "apache"])
def test_members_that_are_killed_have_no_more_calls_at_once(kind: str, tmp_path: Path) -> None:
    """Calls of a process that is dead count as long as they would have taken; its part is given to others."""
    with either_broker(kind, tmp_path) as kafka, ExitStack() as ended:
        files = [tmp_path / f"member-{number}" for number in range(4)]

        def start(number: int) -> subprocess.Popen[bytes]:
            process = budget_member.start(kafka.bootstrap, files[number], "calls")
            ended.callback(process.wait)
            ended.callback(process.kill)
            return process

        members = [start(number) for number in range(3)]
        until(lambda: all(any(spent_in(file)) for file in files[:3]), "each of them has calls")
        members[0].kill()
        members.append(start(3))
        until(lambda: any(spent_in(files[3])), "one that starts later has some, too")
        begun = {file: len(list(spent_in(file))) for file in files[1:]}
        until(lambda: all(len(list(spent_in(file))) >= begun[file] + 60 for file in files[1:]), "all go on")
        for member in members[1:]:
            assert member.stdin is not None
            member.stdin.close()
            assert member.wait(60) == 0
    calls = [one for file in files for one in spent_in(file)]
    changes = sorted([(began, 1) for began, _ in calls] + [(began + took, -1) for began, took in calls])
    assert max(accumulate(change for _, change in changes)) == SLOTTED.at_once.count  # type: ignore[union-attr]


def test_the_topic_is_made_as_a_budget_needs_it(broker: EmbeddedBroker) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    with BudgetClient(kafka, Budget("made", Cap(1, "usd"))):
        settings = Admin(kafka, timeout_ms=60_000).topic_settings("keylane-budget-made")
    assert (settings["message.timestamp.type"], settings["cleanup.policy"]) == ("LogAppendTime", "delete")


@pytest.mark.parametrize(
    ("name", "config", "problem"),
    [
        (
            "compacted",
            {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"},
            "cleanup.policy=compact",
        ),
        ("timed", {"message.timestamp.type": "CreateTime"}, "message.timestamp.type=CreateTime: set LogAppendTime"),
    ],
)
def test_a_topic_that_no_budget_can_stand_on_is_refused(
    broker: EmbeddedBroker, name: str, config: dict[str, str], problem: str
) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    Admin(kafka, timeout_ms=60_000).create_topics({f"keylane-budget-{name}": 1}, config=config)
    client = BudgetClient(kafka, Budget(name, Cap(1, "usd")))
    with pytest.raises(UsageError, match=f"the budget's topic 'keylane-budget-{name}' is none .*{problem}"):
        client.begin()


def spend(client: BudgetClient, who: str, amounts: dict[str, int]) -> None:
    until(lambda: client.spend(who, amounts, time.monotonic()) is None, f"{who} may spend")


def test_who_starts_late_knows_what_was_spent_today(broker: EmbeddedBroker) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    budget = Budget("money", Cap(10, "usd"), lease_ms=60_000)
    with BudgetClient(kafka, budget) as first:
        for number in range(6):
            spend(first, f"call {number}", {"usd": ONE})
    with BudgetClient(kafka, budget) as late:
        assert late.levels()[0].available == 4 * ONE, "what was granted and not spent was given back"
        spend(late, "call", {"usd": 4 * ONE})
        assert late.spend("one more", {"usd": ONE}, time.monotonic()) is not None
        until(lambda: late.used_up() is not None, "it is told that the day's money is used up")


def test_a_cool_down_holds_every_member(broker: EmbeddedBroker) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    budget = Budget("hot", Per(6_000, "calls", per_ms=60_000))
    with BudgetClient(kafka, budget) as one, BudgetClient(kafka, budget) as other:
        spend(one, "a", {"calls": ONE})
        spend(other, "b", {"calls": ONE})
        one.cool_down(600_000, time.monotonic())
        until(lambda: other.levels()[0].free_in_ns > 500 * S, "it has read of it")
        until(lambda: other.spend("c", {"calls": ONE}, time.monotonic()) is not None, "nothing is left to spend")
        assert other.spend("c", {"calls": ONE}, time.monotonic() + 300) is not None


def wants(client: BudgetClient) -> bool:
    client.spend("b", {"calls": 90 * ONE}, time.monotonic())
    return True


def test_members_go_on_in_a_topic_that_was_deleted(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purse, "AWAY_S", 0.5)
    monkeypatch.setattr(client_module, "KEEP_S", 0.2)
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    budget = Budget("anew", Per(6_000, "calls", per_ms=60_000))
    admin, place = Admin(kafka, timeout_ms=60_000), (budget.topic, 0)
    with BudgetClient(kafka, budget) as client:
        spend(client, "a", {"calls": ONE})
        admin.delete_topics([budget.topic])

        def is_written() -> bool:
            return wants(client) and bool(admin.log_ends([place], read_committed=False).get(place))

        until(lambda: wants(client) and budget.topic in admin.topics(), "it is made again")
        until(is_written, "and written to")


def test_records_of_another_kind_of_time_are_passed_over(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    budget = Budget("altered", Per(6_000, "calls", per_ms=60_000))
    with BudgetClient(kafka, budget) as client:
        spend(client, "a", {"calls": ONE})
        entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, budget.topic, incremental_configs=[entry])
        admin = AdminClient({**kafka})
        admin.incremental_alter_configs([resource])[resource].result(60)
        told = "was altered: set message.timestamp.type=LogAppendTime"
        until(
            lambda: client.spend("b", {"calls": 9 * ONE}, time.monotonic()) is None or told in caplog.text, "it is told"
        )
        assert told in caplog.text


def test_the_command_line_lists_and_shows_them(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    with BudgetClient(kafka, Budget("shown", Cap(5, "usd", day="UTC+01:00"), lease_ms=60_000), "a group") as client:
        spend(client, "a", {"usd": 2 * ONE})
        assert main(["budgets", "show", "shown", "--json", "--bootstrap-server", broker.bootstrap_servers]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["limits"] == [
        {"unit": "usd", "count": 5, "per_ms": None, "burst": None, "available": 3, "free_in_ms": 0}
    ]
    assert report["groups"] == [{"group": "a group", "members": 1, "granted": {"usd": 2}}]
    assert main(["budgets", "list", "--bootstrap-server", broker.bootstrap_servers]) == 0
    assert re.search(r"^shown +5 usd a day +3 +0$", capsys.readouterr().out, re.MULTILINE)
    assert main(["budgets", "show", "shown", "--bootstrap-server", broker.bootstrap_servers]) == 0
    assert re.search(r"^a group +1 +2 usd *$", capsys.readouterr().out, re.MULTILINE)
    assert main(["budgets", "show", "none", "--bootstrap-server", broker.bootstrap_servers]) == 2
    assert "there is no budget 'none'" in capsys.readouterr().err


def test_pipelines_of_two_groups_spend_one_budget(broker: EmbeddedBroker) -> None:
    """In no less time than the rate takes for all of their calls; what they took beyond their cost is settled."""
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    broker.create_topics({"shared": 2})
    fill(broker.bootstrap_servers, "shared", 80)
    model = Budget("pipelines", Per(100, "calls", per_ms=1_000, burst=10), Cap(1_000, "tokens"), lease_ms=200)
    begun = time.monotonic()
    ended: list[float] = []

    async def ask(record: kl.Record, context: kl.Context) -> None:
        context.budget.settle(tokens=3)
        if record.offset == 0:
            async with context.budget.take(calls=1, tokens=1):
                pass
        ended.append(time.monotonic())

    def ask_many(records: list[kl.Record], context: kl.Context) -> None:
        context.budget.settle(calls=1, tokens=2 * len(records))
        ended.extend(time.monotonic() for _ in records)

    def run(handler: Any, **options: Any) -> None:
        pipeline = kl.Pipeline(
            kafka={**kafka, "group.id": f"g-{handler.__name__}"},
            topics=["shared"],
            handler=handler,
            budget=model.cost({"calls": 1, "tokens": 1}),
            offset_reset="earliest",
            **options,
        )
        with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
            consumer.run()

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(run, ask), threads.submit(run, ask_many, batch=kl.Batch(4))]:
            one.result(120)
    assert len(ended) == 160
    assert max(ended) - begun >= (162 - model.limits[0].most_at_once - 2 * 20) / 100  # type: ignore[union-attr]
    entries = [decode(one.value) for batch in read_to_end(broker.bootstrap_servers, model.topic) for one in batch]
    settled = sum(one.amounts.get("tokens", 0) for one in entries if isinstance(one, Settlement))
    assert settled == (80 * 2 + 80) * ONE
    assert {one.group for one in entries if isinstance(one, Ask)} == {"g-ask", "g-ask_many"}


def test_processes_of_two_groups_have_so_many_calls_at_once(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    broker.create_topics({"slotted": 2})
    fill(broker.bootstrap_servers, "slotted", 60)
    budget = Budget("slotted", AtOnce(3))
    lock = threading.Lock()
    running, most, begun = 0, 0, {"one": 0, "other": 0}

    def run(group: str) -> None:
        async def ask(record: kl.Record) -> None:
            nonlocal running, most
            with lock:
                running, begun[group] = running + 1, begun[group] + 1
                most = max(most, running)
            await asyncio.sleep(0.02)  # so long the call takes
            with lock:
                running -= 1

        pipeline = kl.Pipeline(
            kafka={**kafka, "group.id": group},
            topics=["slotted"],
            handler=ask,
            budget=budget.cost(),
            offset_reset="earliest",
        )
        with kl.ParallelConsumer(pipeline, ending_offsets="latest") as consumer:
            consumer.run()

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(run, group) for group in begun]:
            one.result(120)
    assert begun == {"one": 60, "other": 60}
    assert most == 3
    assert main(["budgets", "show", "slotted", "--bootstrap-server", broker.bootstrap_servers]) == 0
    assert re.search(r"^3 at once +3 +–$", capsys.readouterr().out, re.MULTILINE), "all were given back"
    assert main(["budgets", "show", "slotted", "--json", "--bootstrap-server", broker.bootstrap_servers]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["at_once"] == {"count": 3, "taken": 0}
    assert [(one["group"], one["members"]) for one in report["groups"]] == [("one", 1), ("other", 1)]


def test_the_example_on_the_page_runs(broker: EmbeddedBroker, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "share_a_budget.py").read_text()
    assert f"```python\n{text}```" in (ROOT / "docs" / "budgets.md").read_text()
    (tmp_path / "example.py").write_text(text.replace("127.0.0.1:9092", broker.bootstrap_servers))
    broker.create_topics({"prompts": 2, "answers": 1})
    fill(broker.bootstrap_servers, "prompts", 5)
    command = [sys.executable, "-m", "keylane", "run", "example.py", "--available-now"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answers = [one.value for batch in read_to_end(broker.bootstrap_servers, "answers") for one in batch]
    assert set(answers) == {b"an answer to a prompt"}


def fill(servers: str, topic: str, count: int) -> None:
    with filling(servers) as producer:
        for number in range(count):
            producer.produce(Output(topic, key=b"%d" % number, value=b"a prompt"))
