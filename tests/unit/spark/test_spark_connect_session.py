"""What lanes take from a Connect session, on one that is only described."""

from __future__ import annotations

import pickle
import socket
import threading
from queue import SimpleQueue
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from keylane.errors import UsageError
from keylane.spark.connect import CLIENT_HOST, ConnectLaneJobs, ConnectSession, is_connect
from keylane.spark.jobs import JobFailure
from keylane.spark.shipping import arrow_body
from keylane.version import __version__


class Client:
    """The parts of a Connect session that lanes use."""

    def __init__(self, master: str = "local[4]", host: str = "127.0.0.1:15002", **settings: str) -> None:
        self.settings = {"spark.master": master} | {name.replace("_", "."): text for name, text in settings.items()}
        self.client, self.conf = self, self
        self.host = self.endpoint = host
        self._builder = self
        self.is_stopped = False
        self.tags: list[str] = []
        self.interrupted: SimpleQueue[str] = SimpleQueue()
        self.answers_interrupts = threading.Event()
        self.answers_interrupts.set()
        self.answer: Any = None

    def get(self, name: str, default: Any) -> Any:
        return self.settings.get(name, default)

    def addTag(self, tag: str) -> None:  # noqa: N802 - Spark's names
        self.tags.append(tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        self.interrupted.put(tag)
        self.answers_interrupts.wait(60)

    def range(self, *_: int) -> Client:
        return self

    def mapInArrow(self, *_: Any) -> Client:  # noqa: N802
        return self

    def collect(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [(pickle.dumps(self.answer),)]


def session(**settings: str) -> ConnectSession:
    return ConnectSession(Client(**settings))  # type: ignore[arg-type]


def result(client: Client) -> Any:
    """Of lane 3 of the run `run`."""
    ended: SimpleQueue[Any] = SimpleQueue()
    jobs = ConnectLaneJobs(client, "run", "group")
    jobs.submit(3, b"shipment", ended.put)
    jobs.join(60)
    return ended.get_nowait()


def test_a_server_that_is_gone_is_told_without_sparks_client() -> None:
    client = Client()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client.endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        jobs = ConnectLaneJobs(client, "run", "group")
        assert jobs.silence() == ""
    assert jobs.silence() == f"the Spark Connect server at {client.endpoint} does not answer (Connection refused)"


def test_a_connect_session_is_told_by_its_module() -> None:
    assert is_connect(type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})())
    assert not is_connect(Client())  # type: ignore[arg-type]


def test_a_local_server_keeps_a_slot_free() -> None:
    slots = session(master="local[4]").slots(allow_all=False, task_cpus=None)
    assert (slots.check(3), slots.default(8), slots.default(2), slots.room()) == (3, 3, 2, 3)
    with pytest.raises(UsageError, match=r"lanes=4 on local\[4\] would take more .* run at most 3 lanes, .*local\[5\]"):
        slots.check(4)
    assert session(master="local[4]").slots(allow_all=True, task_cpus=None).check(4) == 4
    with pytest.raises(UsageError, match="lanes=0: give a whole number"):
        slots.check(0)


def test_the_slots_of_a_cluster_are_not_known_and_lanes_are_not_guessed() -> None:
    slots = session(master="spark://host:7077").slots(allow_all=False, task_cpus=None)
    assert slots.check(30) == 30
    with pytest.raises(UsageError, match=r"lanes=None on spark://host:7077: .*give a number of lanes"):
        slots.default(8)


def test_what_a_client_cannot_have_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"task_cpus=0\.5: not through Spark Connect"):
        session().slots(allow_all=False, task_cpus=0.5)
    twice = {"spark_speculation": "true", "spark_speculation_task_duration_threshold": "60s"}
    with pytest.raises(UsageError, match="makes Spark start each lane twice"):
        session(**twice)
    udf = "spark_sql_execution_pyspark_udf"
    with pytest.raises(UsageError, match=r"spark\.sql\..*killOnIdleTimeout=true kills lanes after 3 s"):
        session(**{f"{udf}_idleTimeoutSeconds": "3s", f"{udf}_killOnIdleTimeout": "true"})
    stopped = Client()
    stopped.is_stopped = True
    with pytest.raises(UsageError, match="the Spark session is stopped"):
        ConnectSession(stopped)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1:15002", "[::1]:15002", "localhost"])
def test_lanes_connect_to_the_clients_address_on_the_way_to_the_server_or_to_what_is_set(host: str) -> None:
    bind, advertised = session(host=host).addresses()
    assert bind == advertised
    assert advertised in ("127.0.0.1", "::1")
    named = Client(host=host)
    named.settings[CLIENT_HOST] = "client.example.org"
    assert ConnectSession(named).addresses() == ("0.0.0.0", "client.example.org")  # type: ignore[arg-type]


def test_a_lanes_query_has_a_tag_of_its_own_and_is_interrupted_by_it() -> None:
    client = Client()
    client.answer = ("missing", "no module")
    ended: SimpleQueue[Any] = SimpleQueue()
    jobs = ConnectLaneJobs(client, "run", "group")
    for _ in range(2):
        jobs.submit(3, b"shipment", ended.put)
        jobs.join(60)
        assert "cannot import keylane (no module)" in str(ended.get_nowait())
    jobs.cancel(3)
    assert client.interrupted.get(timeout=60) == client.tags[1] == "keylane-run-lane-3-2"
    assert client.tags[0] == "keylane-run-lane-3-1", "an interrupt that is late does not hit the query after"


def test_a_server_that_does_not_answer_is_asked_once_and_nobody_waits() -> None:
    client = Client()
    client.answers_interrupts.clear()
    jobs = ConnectLaneJobs(client, "run", "group")
    jobs.submit(3, b"shipment", lambda _: None)
    for _ in range(3):
        jobs.cancel(3)
    assert client.interrupted.get(timeout=60) == "keylane-run-lane-3-1"
    client.answers_interrupts.set()
    assert client.interrupted.empty()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008", "cancelled"),
        ("Job aborted due to stage failure: Python worker exited unexpectedly (crashed)", "died"),
    ],
)
def test_how_a_query_ended_is_told_apart(text: str, kind: str) -> None:
    client = Client()
    client.answer = RuntimeError(f"{text}\n\nJVM stacktrace: …")
    assert result(client) == JobFailure(kind, text)  # type: ignore[arg-type]
    client.answer, client.is_stopped = RuntimeError("channel closed"), True
    assert result(client) == JobFailure("session stopped", "channel closed")


def test_a_server_with_another_python_ends_the_query_with_a_sentence() -> None:
    client = Client()
    client.answer = RuntimeError(
        "Job aborted\nPython in worker has different version: 3.12 than that in driver: 3.11, …"
    )
    ended = result(client)
    assert isinstance(ended, UsageError)
    assert str(ended).startswith("the executors' Python, the server's, is 3.12, and the driver's is 3.11: ")


def test_a_body_of_another_version_says_so_in_one_row_whatever_it_is_sent() -> None:
    pytest.importorskip("pyarrow")
    (batch,) = arrow_body(b"shipment", "another")(iter([]))
    assert batch.schema.names == ["result"]
    assert pickle.loads(batch.column(0)[0].as_py()) == ["version", __version__]
