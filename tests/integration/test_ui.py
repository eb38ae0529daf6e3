"""The page's server on a real broker and real members: what it tells, what it does, and whom it refuses."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import keylane as kl
from keylane.cli import main
from keylane.consumer.dead_letters import said_of
from keylane.kafka.admin import Admin
from keylane.kafka.keyed_topic import KeyedWriter
from keylane.kafka.memory_topics import REPORTS
from keylane.offsets import OffsetMap, encode
from keylane.operations.commands import VERSION, Holding
from keylane.operations.reports import key_of, value_of
from keylane.pipeline import topics_of_operations
from keylane.testing import EmbeddedBroker
from keylane.ui import page as page_module
from keylane.ui import server as server_module
from keylane.ui import watch
from keylane.ui.guard import TOKEN_HEADER
from keylane.ui.page import Page
from kit import operated
from kit.operated import PARTITIONS, TOKEN
from kit.page_client import PageClient
from kit.processes import Started
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from collections.abc import Iterator

broker, stage = operated.broker, operated.stage


@pytest.fixture
def page(stage: Stage) -> Iterator[Page]:
    with Page({"bootstrap.servers": stage.servers}, stage.admin, token=TOKEN) as page:
        yield page


@pytest.fixture
def client(page: Page) -> PageClient:
    return PageClient(page.url, TOKEN)


class Handled:
    """What a member has done; a record with a key of `held` stays in its handler until it is let go."""

    def __init__(self, *held: bytes) -> None:
        self.offsets: list[tuple[int, int]] = []
        self.go = threading.Event()
        self._held = held

    def __call__(self, record: kl.Record) -> None:
        if record.key == b"bad":
            raise ValueError("bad weather")
        if record.key in self._held:
            self.go.wait(60)
        self.offsets.append((record.partition, record.offset))


@contextmanager
def member(stage: Stage, handled: Handled, **options: Any) -> Iterator[ThreadMember]:
    operations = kl.Operations(token=TOKEN, report_interval_ms=100, show_keys=True)
    retries = kl.Retries(max_attempts=None, delay_ms=60_000, jitter=0)
    chosen = {"operations": operations, "retries": retries, "commit": kl.Commit(interval_ms=100)} | options
    one = ThreadMember(stage.pipeline(handled, **chosen), "the member")
    try:
        until(lambda: topics_of_operations(stage.group)[1] in stage.admin.topics(), "it reports")
        yield one
    finally:
        handled.go.set()
        one.consumer.stop("now")
        one.end()


def fill(stage: Stage, records: int, key: bytes | None = None) -> None:
    stage.fill((key or b"%d" % (number % 7), number % PARTITIONS) for number in range(records))


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [("\xff\xfe", "{}", 401), (TOKEN, "[" * 60_000, 400), (TOKEN, "9" * 20_000, 400)],
    ids=["token", "depth", "number"],
)
def test_what_is_no_token_and_no_json_is_refused(page: Page, token: str, body: str, status: int) -> None:
    connection = http.client.HTTPConnection(page.url[len("http://") : -1], timeout=20)
    headers = {"Content-Type": "application/json", TOKEN_HEADER: token}  # http.client sends them as Latin-1
    connection.request("POST", "/api/unlock", body, headers)
    assert connection.getresponse().status == status
    connection.close()


def test_one_more_than_may_be_silent_ends_the_oldest(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = page.url.removeprefix("http://").rstrip("/").rpartition(":")
    monkeypatch.setattr(page_module, "MOST_BEGUN", 3)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(4)]
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
        silent[3].sendall(f"GET /api/about HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        assert silent[3].recv(12) == b"HTTP/1.1 200"


def test_half_requests_are_ended(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a head nor a body that does not come keeps a connection; one that has asked may wait for its next."""
    host, _, port = page.url[len("http://") : -1].rpartition(":")
    usual = http.client.HTTPConnection(host, int(port), timeout=20)
    usual.request("GET", "/")
    assert usual.getresponse().read()
    monkeypatch.setattr(page_module, "HEAD_S", 0.2)
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    for beginning in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        with socket.create_connection((host, int(port)), 20) as half, suppress(ConnectionResetError):
            half.sendall(beginning)
            assert half.recv(1) == b""
    head = {"Host": host, "Content-Type": "application/json", "Content-Length": "9", TOKEN_HEADER: TOKEN}
    with socket.create_connection((host, int(port)), 20) as half:
        lines = ["POST /api/unlock HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        half.sendall("\r\n".join([*lines, "", "{"]).encode())
        assert half.recv(65_536).startswith(b"HTTP/1.1 408")
    kept = usual.sock
    usual.request("GET", "/")
    assert usual.getresponse().status == 200
    assert usual.sock is kept
    usual.close()


def test_files_come_with_headers_that_keep_strangers_out(client: PageClient) -> None:
    index = client.get("/")
    assert (index.status, index.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in index.headers["Content-Security-Policy"]
    assert index.headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in index.headers
    for name in ("page.css", "page.js", "icon.svg"):
        assert f"/static/{name}".encode() in index.body
        assert client.get(f"/static/{name}").status == 200
    assert b"<style" not in index.body, "the policy refuses it"
    for path in ("/static/../server.py", "/static/no.js", "/static/", "/other"):
        assert client.get(path).status == 404
    about = client.get("/api/about").said
    assert (about["acts"], TOKEN in str(about)) == (True, False)


def test_a_group_that_reports_is_told_as_it_runs(stage: Stage, client: PageClient) -> None:
    handled = Handled(b"held")
    stage.create(1, "the.dead")
    fill(stage, 30)
    fill(stage, 3, b"bad")
    fill(stage, 6, b"held")
    with member(stage, handled, on_exhausted=kl.DeadLetter("the.dead")), client.watching(stage.group) as watching:
        view = watching.until(
            lambda view: (
                sum(one.get("processed", 0) for one in view.get("members", {}).values()) == 30
                and len(view.get("waiting", ())) == 3
                and {one["why"] for one in view["in_hand"]} == {"running"}
                and all(one["strip"] or one["committed"] for one in view["partitions"].values())
                and view["head"]["remaining"] == 9
            ),
            "what it does is told",
        )
        assert view["head"]["reports"]
        (one,) = view["members"].values()
        assert (one["client"], one["runs"], one["partitions"], one["obeys"]) == ("the member", "process", 3, True)
        assert {one["why"] for one in view["waiting"]} == {"retry"}
        assert {queue["key"] for queue in view["queues"]} <= {"held", "bad"}
        assert [failure["error"] for failure in view["failures"]] == ["ValueError"]
        assert view["dead_letter_topics"] == ["the.dead"]
        assert {part["member"] for part in view["partitions"].values()} == {one["member"]}
        assert all(len(point) == 7 for point in view["history"])
        handled.go.set()
        watching.until(lambda view: view["head"]["remaining"] == 3, "and goes on")
        with client.watching(stage.group) as second:
            seen = second.until(bool, "the whole view")
            assert len(seen["history"]) >= 1, "a page that comes later has the minutes before"
            assert set(seen["partitions"]) == set(view["partitions"])


def test_a_group_of_other_software_shows_its_map_its_lag_and_what_remains(stage: Stage, client: PageClient) -> None:
    fill(stage, 60)
    maps = {0: OffsetMap(2, [2, 5, 6], 9), 1: OffsetMap(20)}
    stage.admin.commit_offsets(
        stage.group,
        {(stage.topic, number): one.base for number, one in maps.items()},
        {(stage.topic, 0): encode(maps[0])},
    )
    with client.watching(stage.group) as watching:
        view = watching.until(lambda view: "partitions" in view, "it is told")
        assert not view["head"]["reports"]
        assert (view["head"]["lag"], view["head"]["remaining"]) == (18, 13)
        first = view["partitions"][f"{stage.topic}-0"]
        assert (first["strip"], first["incomplete"], first["remaining"], first["lag"]) == ("09900999", 3, 13, 18)
        stage.admin.commit_offsets(stage.group, {(stage.topic, 0): 12})
        watching.until(lambda view: view["head"]["remaining"] == 8, "a commit is seen")
        rates = [
            point[1] for point in watching.until(lambda view: bool(view["history"][-1][1]), "and a rate")["history"]
        ]
        assert max(rate for rate in rates if rate) > 0
    with client.watching() as watching:
        row = watching.until(
            lambda view: (view["groups"].get(stage.group) or {}).get("remaining") == 8, "it is in the list of groups"
        )["groups"][stage.group]
        assert (row["state"], row["reports"], row["members"]) == ("empty", False, 0)


@pytest.mark.full
def test_a_dry_run_changes_nothing_and_a_command_is_done_by_every_member(stage: Stage, client: PageClient) -> None:
    handled = Handled()
    with member(stage, handled) as one, client.watching(stage.group) as watching:
        until(lambda: one.assigned == PARTITIONS, "it has its partitions")
        until(lambda: bool(client.act("/api/operate", group=stage.group, do="pause")["members"]), "it is heard")
        would = client.act("/api/operate", group=stage.group, do="pause", topics=[f"{stage.topic}:0,2"])
        assert (would["executed"], would["command"], len(would["members"])) == (False, None, 1)
        assert would["line"] == f"keylane operate pause {stage.group} --topic {stage.topic}:0,2"
        did = client.act("/api/operate", group=stage.group, do="pause", topics=[f"{stage.topic}:0,2"], execute=True)
        assert (did["done"], [row["state"] for row in did["members"]]) == (True, ["done"])
        fill(stage, 30)
        until(lambda: len(handled.offsets) == 10, "what is not paused goes on")
        view = watching.until(lambda view: bool(view.get("holds")) and bool(view.get("log")), "what holds is told")
        assert view["holds"] == [f"paused: {stage.topic}-0, {stage.topic}-2"]
        watching.until(lambda view: sum(part["paused"] for part in view["partitions"].values()) == 2, "by partition")
        assert [(row["do"], row["members"][0]["state"]) for row in view["log"]] == [("pause", "done")]
        adjusted = client.act(
            "/api/operate", group=stage.group, do="adjust", max_concurrency=3, rates={"per_key": None}, execute=True
        )
        assert adjusted["done"]
        watching.until(lambda view: "max_concurrency=3" in view["holds"], "adjusted")
        client.act("/api/operate", group=stage.group, do="resume", execute=True)
        until(lambda: len(handled.offsets) == 30, "all of it")
        sought = client.act(
            "/api/operate",
            group=stage.group,
            do="seek",
            topics=[f"{stage.topic}:1"],
            to={"kind": "offset", "value": 4},
            execute=True,
        )
        assert (sought["done"], len(sought["partitions"])) == (True, 1)
        until(lambda: len(handled.offsets) == 36, "from there on again")
        drained = client.act("/api/operate", group=stage.group, do="drain", execute=True)
        assert drained["done"]


def test_who_may_not_act_changes_nothing(stage: Stage, page: Page, client: PageClient) -> None:
    handled = Handled()
    with member(stage, handled):
        pause = {"group": stage.group, "do": "pause", "execute": True}
        stranger = PageClient(page.url, "another token that is long enough")
        assert stranger.post("/api/operate", pause).status == 401
        assert PageClient(page.url).post("/api/operate", pause).status == 401
        for headers in (
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            assert client.post("/api/operate", pause, headers).status == 403
            assert client.get("/api/events", headers, group=stage.group).status == 403
        assert client.post("/api/operate", pause, {"Content-Type": "text/plain"}).status == 415
        assert client.get("/api/operate").status == 405
        for body in ("[]", "nonsense"):
            assert client.post("/api/operate", body).status == 400
        fill(stage, 30)
        until(lambda: len(handled.offsets) == 30, "it runs")
        assert topics_of_operations(stage.group)[0] in stage.admin.topics()
        assert not stage.read(topics_of_operations(stage.group)[0]), "no command was written"


def test_without_a_token_the_page_only_shows(stage: Stage) -> None:
    stage.create(1, f"{stage.topic}.dead")
    with Page({"bootstrap.servers": stage.servers}, stage.admin) as page:
        for token in (None, "", TOKEN):
            client = PageClient(page.url, token)
            assert client.get("/api/about").said["acts"] is False
            for path in ("operate", "redrive", "payload", "unlock"):
                assert client.post(f"/api/{path}", {"group": stage.group, "do": "pause", "execute": True}).status == 403


def bury(stage: Stage, count: int) -> str:
    """Dead letters; their topic."""
    dead = f"{stage.topic}.dead"
    stage.create(1, dead)
    producer = Producer({"bootstrap.servers": stage.servers})
    for number in range(count):
        error = TimeoutError("slow") if number % 2 else ValueError("bad")
        headers: list[Any] = said_of((stage.topic, number % PARTITIONS, number), 1_700_000_000_000, error, 5)
        producer.produce(dead, b"the value %d" % number, b"key", 0, headers=headers)
    assert producer.flush(30) == 0
    return dead


def test_dead_letters_are_shown_and_sent_back_and_their_payload_only_with_the_token(
    stage: Stage, page: Page, client: PageClient
) -> None:
    dead = bury(stage, 6)
    assert dead in client.get("/api/topics").said["topics"]
    listed = client.get("/api/letters", topic=dead).said
    assert (listed["matching"], len(listed["letters"])) == (6, 6)
    assert client.get("/api/letters", topic=dead, error="TimeoutError", limit="2").said["matching"] == 3
    assert client.get("/api/letters", topic=dead, reason="lo").said["matching"] == 3
    assert client.get("/api/letters", topic=dead, key="key").said["matching"] == 6
    assert client.get("/api/letters", topic=dead, key="other").said["matching"] == 0
    now_ms = int(time.time() * 1000)
    assert client.get("/api/letters", topic=dead, since=f"{now_ms - 600_000}").said["matching"] == 6
    assert client.get("/api/letters", topic=dead, until=f"{now_ms - 600_000}").said["matching"] == 0
    assert client.act("/api/redrive", topic=dead, until=now_ms - 600_000)["letters"] == 0
    letter = client.get("/api/letter", topic=dead, partition="0", offset="1")
    assert (letter.said["error"], letter.said["value_bytes"]) == ("TimeoutError", 11)
    assert b"the value" not in letter.body
    place = {"topic": dead, "partition": 0, "offset": 1}
    assert PageClient(page.url).post("/api/payload", place).status == 401
    assert client.act("/api/payload", **place)["value"] == "the value 1"
    missing = client.get("/api/letter", topic=dead, partition="0", offset="99")
    assert (missing.status, "no such letter" in missing.said["error"]) == (400, True)
    would = client.act("/api/redrive", topic=dead, error="TimeoutError")
    assert (would["executed"], would["letters"], would["to"]) == (False, 3, {stage.topic: 3})
    assert not stage.read(stage.topic)
    assert client.act("/api/redrive", topic=dead, error="TimeoutError", execute=True)["letters"] == 3
    assert sorted(record.value or b"" for record in stage.read(stage.topic)) == [b"the value %d" % n for n in (1, 3, 5)]
    again = client.act("/api/redrive", topic=dead, error="TimeoutError", execute=True)
    assert (again["letters"], again["redriven_before"]) == (0, 3)
    waiting = client.get("/api/letters", topic=dead, waiting="yes").said
    assert (waiting["matching"], any(one["redriven"] for one in waiting["letters"])) == (3, False)


def test_payloads_are_shown_as_the_pipelines_deserializers_make_them(stage: Stage) -> None:
    dead = bury(stage, 1)
    stage.fill([(b"the key", 0)])
    stage.admin.commit_offsets(stage.group, {(stage.topic, 0): 0})

    def upper(data: bytes, _: object) -> str:
        return data.decode().upper()

    ours = stage.pipeline(print, key_deserializer=upper, value_deserializer=upper, on_exhausted=kl.DeadLetter(dead))
    others = Stage(stage.servers, "others", group="others").pipeline(print, key_deserializer=lambda *_: "no")
    with Page({"bootstrap.servers": stage.servers}, stage.admin, token=TOKEN, pipelines=[others, ours]) as page:
        client = PageClient(page.url, TOKEN)
        assert client.act("/api/payload", topic=dead, partition=0, offset=0)["value"] == "THE VALUE 0"
        (shown,) = client.act("/api/record", group=stage.group, record=f"{stage.topic}:0@0")["records"]
        assert shown["key"] == "THE KEY"


def test_letters_are_purged_and_those_that_wait_stay(stage: Stage, client: PageClient) -> None:
    dead = bury(stage, 6)
    client.act("/api/redrive", topic=dead, limit=2, execute=True)
    would = client.act("/api/purge", topic=dead, to={"kind": "redriven"})
    assert (would["executed"], [one["records"] for one in would["partitions"]]) == (False, [2])
    assert len(stage.read(dead)) == 6
    assert client.act("/api/purge", topic=dead, to={"kind": "redriven"}, execute=True)["executed"]
    assert len(stage.read(dead)) == 4
    assert client.get("/api/purge").status == 405


def test_a_record_is_shown_and_its_payload_only_with_the_token(stage: Stage, page: Page, client: PageClient) -> None:
    fill(stage, 9, b"the key")
    stage.admin.commit_offsets(stage.group, {(stage.topic, 0): 1})
    asked = {"group": stage.group, "record": f"{stage.topic}:0@1"}
    answer = client.get("/api/record", group=asked["group"], record=asked["record"])
    (shown,) = answer.said["records"]
    assert (shown["standing"], shown["in_log"], shown["key_bytes"]) == ("beyond", "there", 7)
    assert b"the key" not in answer.body
    assert PageClient(page.url).post("/api/record", asked).status == 401
    (shown,) = client.act("/api/record", **asked)["records"]
    assert shown["key"] == "the key"
    missing = client.get("/api/record", group=stage.group, record="here")
    assert (missing.status, "TOPIC:PARTITION@OFFSET" in missing.said["error"]) == (400, True)


def test_a_group_that_has_just_started_is_not_said_not_to_exist(stage: Stage, client: PageClient) -> None:
    """Its member tells of itself before it has joined: here it never does."""
    reports = topics_of_operations(stage.group)[1]
    stage.admin.create_topics({reports: 1}, config=REPORTS.config)
    writer = KeyedWriter({"bootstrap.servers": stage.servers}, reports, pytest.fail)
    said: Any = {"version": VERSION, "group": stage.group, "member": "m", "runs": "process", "client_id": "new"}
    said |= {"host": "h", "pid": 1, "keylane": "1", "started_ms": 0, "reported_ms": 0, "interval_ms": 2_000}
    said |= {"takes_commands": True, "command": 0, "holding": Holding().to_dict(), "lanes": [], "in_hand": []}
    writer.write(key_of("m"), value_of(said | {"snapshot": kl.Snapshot().to_dict(), "waiting": [], "queues": []}))
    assert writer.flush(10)
    with client.watching(stage.group) as watching:
        view = watching.until(lambda view: "head" in view or bool(view.get("error")), "it is shown")
        assert (view["error"], view["head"]["state"], len(view["members"])) == (None, "starting", 1)
        writer.write(key_of("m"), None)
        assert writer.flush(10)
        watching.until(lambda view: "does not exist" in (view["error"] or ""), "it ended before it had joined")


def test_a_group_that_does_not_exist_is_said_not_to_and_shown_when_it_comes(stage: Stage, client: PageClient) -> None:
    with client.watching(stage.group) as watching:
        view = watching.until(lambda view: bool(view.get("error")), "it says so")
        assert "does not exist" in view["error"]
        stage.admin.commit_offsets(stage.group, {(stage.topic, 0): 0})
        watching.until(lambda view: view["error"] is None and len(view["partitions"]) == 1, "it came")


def test_so_many_groups_are_watched_and_no_more(
    stage: Stage, client: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_WATCHED", 2)
    with ExitStack() as stack:
        first = stack.enter_context(client.watching("one"))
        stack.enter_context(client.watching("two"))
        refused = client.get("/api/events", group="three")
        assert (refused.status, refused.said["error"]) == (
            400,
            "2 groups are shown already: close the page of another one",
        )
        assert stack.enter_context(client.watching("one")).status == 200, "one that is watched anyway"
        assert first.until(lambda view: "error" in view, "it goes on")
    until(lambda: client.watching("three").status == 200, "a group that nobody looks at makes room")


def test_a_group_that_nobody_looks_at_is_left_alone_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.ui.server.ALIVE_S", 0.05)  # a page that is gone is noticed when it is told something
    monkeypatch.setattr(watch, "SWEEP_S", 0.05)
    monkeypatch.setattr(watch, "IDLE_S", 0.0)
    name = f"keylane-ui-{stage.group}"

    def is_watched() -> bool:
        return any(one.name == name for one in threading.enumerate())

    with Page({"bootstrap.servers": stage.servers}, stage.admin) as page:
        client = PageClient(page.url)
        with client.watching(stage.group) as watching:
            watching.until(lambda view: "error" in view, "it is looked at")
            assert is_watched()
        until(lambda: not is_watched(), "its watch ends")
        with client.watching(stage.group) as watching:
            watching.until(lambda view: "error" in view, "and begins again")


def test_a_broker_that_is_away_is_said_to_be_and_the_page_goes_on() -> None:
    with EmbeddedBroker() as broker:
        kafka = {"bootstrap.servers": broker.bootstrap_servers}
        with Page(kafka, Admin(kafka, timeout_ms=500), token=TOKEN) as page:
            client = PageClient(page.url, TOKEN)
            with client.watching() as watching:
                watching.until(lambda view: "groups" in view and view["error"] is None, "it is there")
                broker.stop()
                watching.until(lambda view: bool(view["error"]), "it is away")
                assert client.get("/api/topics").status == 502
                broker.start()
                watching.until(lambda view: view["error"] is None, "it is back")


def test_the_command_serves_the_page_until_ctrl_c(broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-m", "keylane", "ui", "--bootstrap", broker.bootstrap_servers, "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "KEYLANE_OPERATIONS_TOKEN"}
    for token, says in ((None, "only shows"), (TOKEN, "acts with the members' token")):
        given = environment | ({"KEYLANE_OPERATIONS_TOKEN": token} if token else {})
        with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert says in line
            assert TOKEN not in line
            client = PageClient(line.split()[2], token)
            assert client.get("/api/about").said["acts"] is (token is not None)
            with client.watching() as watching:
                watching.until(lambda view: "groups" in view, "it shows")
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


def test_a_port_that_is_taken_is_named(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", "--bootstrap", broker.bootstrap_servers, "--port", str(port)]) == 1
    assert f"cannot be served at 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "--port 70000: give a number"),
        (["--token-file", "/no/such/file"], "--token-file /no/such/file"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_token_that_is_too_short_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYLANE_OPERATIONS_TOKEN", "hunter2")
    assert main(["ui", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert ("shorter than 16 characters" in said, "hunter2" in said) == (True, False)
