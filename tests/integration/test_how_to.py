"""The recipes of docs/how-to run: each program as it is shown, with real services at its other end."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import peers
import pytest
from aiohttp import web
from peers.postgres import PostgresServer, find_postgres

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.records import Output
from kit.filling import filling
from kit.http_service import Service
from kit.processes import Started
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keylane.records import Record

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
TIMEOUT_S = 60
CUSTOMERS, STATES = 40, 2_000


class Kitchen:
    """The examples in a folder of their own, on a broker of their own."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self.servers = servers

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pipeline(self, file: str, replaced: dict[str, str] | None = None) -> str:
        """Run the pipeline of a file to the end of its topics."""
        path = self.folder / file
        text = (ROOT / "examples" / file).read_text()
        for old, new in ({"127.0.0.1:9092": self.servers} | (replaced or {})).items():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return self.run("-m", "keylane", "run", file, "--available-now")

    def fill(self, topic: str, records: Iterable[tuple[str, object]], **others: int) -> None:
        """Makes the topic, and others with so many partitions, and produces keys and values."""
        Admin({"bootstrap.servers": self.servers}).create_topics({topic: 2} | others)
        with filling(self.servers) as producer:
            for key, value in records:
                text = value if isinstance(value, str) else json.dumps(value)
                producer.produce(Output(topic, key.encode(), text.encode()))

    def read(self, topic: str) -> list[Record]:
        return [record for batch in read_to_end(self.servers, topic) for record in batch]


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    folder = tmp_path_factory.mktemp("how-to")
    with BrokerProcess(folder / "data") as broker:
        for file in (ROOT / "examples").glob("*.py"):
            shutil.copy(file, folder)
            copied = folder / file.name
            copied.write_text(copied.read_text().replace("127.0.0.1:9092", broker.bootstrap))
        yield Kitchen(folder, broker.bootstrap)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_begins_with_what_the_reader_can_do_and_shows_programs_as_they_are(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# [A-Z].+\n\nYou have ", text)
    programs = {file.read_text() for file in (ROOT / "examples").glob("*.py")}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if block not in programs:
            exec(compile(block, page.name, "exec"), {"__name__": page.stem})
    named = set(re.findall(r"examples/(\w+\.py)", text))
    assert {name for name in named if not (ROOT / "examples" / name).exists()} == set()


def test_webhooks_keep_to_each_customers_limit_and_who_does_not_answer_holds_up_nobody(kitchen: Kitchen) -> None:
    events = 20
    arrived: defaultdict[str, list[float]] = defaultdict(list)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    keys: Counter[str] = Counter()
    others = asyncio.Event()

    async def answer(request: web.Request, before: int) -> web.Response:
        customer = request.path[1:]
        arrived[customer].append(time.monotonic())
        seen[customer].append((await request.json())["number"])
        keys[request.headers["Idempotency-Key"]] += 1
        if len(seen["quick"]) + len(seen["other"]) == 2 * events:
            others.set()
        if customer == "gone":
            return web.Response(status=410)
        if customer == "silent" and before == 0:  # until all others have theirs
            await others.wait()
            return web.Response(status=503, headers={"Retry-After": "0"})
        return web.Response()

    with Service() as service:
        service.answer = answer
        customers = ["quick", "silent", "other", "gone"]
        kitchen.fill(
            "webhooks",
            (
                (customer, {"url": f"{service.url}/{customer}", "event": {"number": number}})
                for number in range(events)
                for customer in customers
            ),
            **{"webhooks.dead": 1},
        )
        kitchen.pipeline("webhooks.py", {"refuse_private_addresses=True": "refuse_private_addresses=False"})
    assert seen["quick"] == seen["other"] == list(range(events)), "in order, each once"
    assert seen["silent"] == [0, *range(events)], "the one that was refused came again, with nothing before it"
    assert max(keys.values()) == 2
    assert len(keys) == events * len(customers)
    dead = [json.loads(one.value or b"")["event"]["number"] for one in kitchen.read("webhooks.dead")]
    assert dead == list(range(events)), "of who is gone"
    least_s = (events - 1) / 10
    for customer in ("quick", "other"):
        # The first one may have waited for its connection.
        assert arrived[customer][-1] - arrived[customer][0] > least_s - 0.7, "ten a second"


def test_a_model_is_asked_within_its_budget(kitchen: Kitchen) -> None:
    prompts, tokens, a_second = 100, 325, 3_000
    arrived: list[float] = []
    refused: list[str] = []

    async def answer(request: web.Request, before: int) -> web.Response:
        asked = await request.json()
        assert len(asked["prompt"]) // 4 + asked["max_tokens"] == tokens
        if asked["prompt"].startswith("prompt 7 ") and not refused:
            refused.append(asked["prompt"])
            return web.Response(status=429, headers={"Retry-After": "0"})
        arrived.append(time.monotonic())
        return web.Response(text=asked["prompt"].upper())

    with Service() as service:
        service.answer = answer
        texts = [f"prompt {number} ".ljust(100) for number in range(prompts)]
        kitchen.fill("prompts", ((text, text) for text in texts), answers=1, **{"prompts.dead": 1})
        kitchen.pipeline("ask_model.py", {"http://127.0.0.1:8080": service.url, "90_000": str(a_second * 60)})
    answers = sorted(one.value or b"" for one in kitchen.read("answers"))
    assert answers == sorted(text.upper().encode() for text in texts)
    assert len(refused) == 1
    assert kitchen.read("prompts.dead") == []
    beyond = prompts * tokens - 10 * a_second
    assert arrived[-1] - arrived[0] > beyond / a_second - 0.3, "what is beyond ten seconds' budget waits for it"


def states(kitchen: Kitchen, topic: str) -> dict[str, str]:
    """Fills a topic with states of customers, and a record that is none; the last state of each."""
    last = {f"customer-{number % CUSTOMERS}": f"city {number}" for number in range(STATES)}
    records = [(f"customer-{number % CUSTOMERS}", {"city": f"city {number}"}) for number in range(STATES)]
    kitchen.fill(topic, records)
    return last


@pytest.mark.full
def test_upserts_into_postgresql_leave_the_last_state_whatever_comes_again(kitchen: Kitchen) -> None:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    import psycopg

    last = states(kitchen, "customers")
    kitchen.fill("customers", [("customer-0", "no JSON")], **{"customers.dead": 1})
    with PostgresServer() as server:
        address = {"postgresql://postgres@127.0.0.1:5432/postgres": server.conninfo}
        assert f"{STATES:,} records processed" in kitchen.pipeline("upsert_to_postgres.py", address)
        with psycopg.connect(server.conninfo) as connection:
            rows = connection.execute("SELECT id, city, place FROM customers").fetchall()
            assert {name: city for name, city, _ in rows} == last
            connection.execute("UPDATE customers SET city = 'a later one', place = place + 1 WHERE id = 'customer-1'")
        kitchen.pipeline("upsert_to_postgres.py", {**address, '"group.id": "customers"': '"group.id": "again"'})
        with psycopg.connect(server.conninfo) as connection:
            again: dict[str, str] = dict(connection.execute("SELECT id, city FROM customers").fetchall())
    assert again == last | {"customer-1": "a later one"}, "a replay puts no older state over a newer one"
    assert [one.value for one in kitchen.read("customers.dead")] == [b"no JSON", b"no JSON"]


ADDRESSES = {
    "save_with_django": ('"PORT": 5432', '"PORT": {port}'),
    "save_with_sqlalchemy": ("127.0.0.1:5432/postgres", "127.0.0.1:{port}/postgres"),
}
"""By example, how its database stands there, and as the test has it."""


@pytest.mark.full
@pytest.mark.parametrize("example", ADDRESSES)
def test_an_orms_units_of_work_outlive_a_restart_of_their_database(kitchen: Kitchen, example: str) -> None:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    import psycopg

    topic = f"{example}-customers"
    cities = [(f"customer-{number}", json.dumps({"city": f"City {number}"})) for number in range(100)]
    kitchen.fill(topic, cities, **{"customers.dead": 1})
    text = (kitchen.folder / f"{example}.py").read_text()
    with PostgresServer() as server:
        old, new = ADDRESSES[example]
        text = text.replace(old, new.format(port=server.port)).replace('topics=["customers"]', f"topics=[{topic!r}]")
        (kitchen.folder / f"{example}_here.py").write_text(
            text.replace('"group.id": "customers"', f'"group.id": "{topic}"')
        )
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE customers (id text PRIMARY KEY, city text NOT NULL)")

        def saved() -> dict[str, str]:
            with psycopg.connect(server.conninfo) as connection:
                return dict(connection.execute("SELECT id, city FROM customers").fetchall())

        with Started(
            [sys.executable, "-m", "keylane", "run", f"{example}_here.py"],
            cwd=kitchen.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as running:  # fmt: skip
            until(lambda: len(saved()) == len(cities), "all are saved")
            server.stop()
            server.start()
            with filling(kitchen.servers) as producer:
                for key, _ in cities:
                    producer.produce(Output(topic, key.encode(), b'{"city": "another"}'))
                producer.produce(Output(topic, b"customer-0", None))
            until(lambda: set(saved().values()) == {"another"} and len(saved()) == 99, "all are saved anew")
            running.terminate()
            said, _ = running.communicate(timeout=TIMEOUT_S)
        assert "failed" not in said, f"the connections were made anew before they were used: {said}"
    assert topic.encode() not in {dict(one.headers)["keylane.topic"] for one in kitchen.read("customers.dead")}


@pytest.mark.full
def test_upserts_into_a_delta_table_leave_the_last_state_whatever_comes_again(kitchen: Kitchen) -> None:
    from deltalake import DeltaTable

    topic = {'topics=["customers"]': 'topics=["states"]'}
    last = states(kitchen, "states")
    table = str(kitchen.folder / "customers")
    kitchen.pipeline("upsert_to_delta.py", topic)
    before = DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist()
    assert {row["id"]: row["city"] for row in before} == last
    kitchen.pipeline("upsert_to_delta.py", topic | {"customers-delta": "again-delta"})
    assert DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist() == before


@contextmanager
def object_storage() -> Iterator[str]:
    """moto's server of S3, in a process of its own; its address."""
    (port,) = peers.free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with Started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def answers() -> bool:
            assert server.poll() is None
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(answers, "the object storage answers")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.mark.full
def test_objects_are_there_before_their_names_and_once(kitchen: Kitchen) -> None:
    pytest.importorskip("moto")
    from pyarrow.fs import FileSelector, S3FileSystem

    texts = [f"document {number}" for number in range(100)]
    kitchen.fill("documents", ((text, text) for text in texts), **{"documents.stored": 1, "documents.dead": 1})
    with object_storage() as address:
        client = S3FileSystem(
            endpoint_override=address, scheme="http", region="us-east-1", access_key="a", secret_key="b",
            allow_bucket_creation=True,
        )  # fmt: skip
        client.create_dir("documents")
        kitchen.pipeline("objects_to_s3.py", {"127.0.0.1:9000": address})
        names = {one.key: (one.value or b"").decode() for one in kitchen.read("documents.stored")}
        assert {key: client.open_input_stream(name).read() for key, name in names.items()} == {
            text.encode(): text.encode() for text in texts
        }
        kitchen.pipeline("objects_to_s3.py", {"127.0.0.1:9000": address, '"storing"': '"storing-again"'})
        files = client.get_file_info(FileSelector("documents", recursive=True))
        assert sum(one.is_file for one in files) == len(texts), "what comes again overwrites itself"


@pytest.mark.full
def test_a_group_of_aiokafkas_goes_on_under_keylane(kitchen: Kitchen) -> None:
    kitchen.run("produce_orders.py")
    Admin({"bootstrap.servers": kitchen.servers}).create_topics({"orders.moved": 1})
    kitchen.run("aiokafka_before.py")
    assert len(kitchen.read("orders.moved")) == 700
    assert "1,300 records processed" in kitchen.pipeline("aiokafka_after.py")
    moved = sorted(one.value or b"" for one in kitchen.read("orders.moved"))
    assert moved == sorted(b"ORDER %d" % number for number in range(2_000)), "none is lost, none is there twice"


STAND_IN = """
import keylane.testing


class KafkaContainer:
    def __init__(self, image):
        assert ":" in image

    def with_kraft(self):
        return self

    def __enter__(self):
        self.broker = keylane.testing.broker()
        self.broker.start()
        return self

    def __exit__(self, *error):
        self.broker.close()

    def get_bootstrap_server(self):
        return self.broker.bootstrap_servers
"""


def test_a_test_that_had_a_container_stays_as_it_is(kitchen: Kitchen) -> None:
    """With a stand-in for the container, which has the names of testcontainers."""
    package = kitchen.folder / "testcontainers"
    package.mkdir()
    (package / "kafka.py").write_text(STAND_IN)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-o", "pythonpath=.")
    before, after = ((ROOT / "examples" / f"container_{name}.py").read_text() for name in ("before", "after"))
    assert before.partition("\ndef test")[2] == after.partition("\ndef test")[2]
    assert "2 passed" in kitchen.run(*command, "container_before.py", "container_after.py")
