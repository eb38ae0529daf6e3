"""Lanes from a client of Spark Connect: jobs, task slots and addresses, in place of a SparkContext's.

The idea: the driver of the lanes is the client's process, and the server's executors connect to it. A lane is the one
task of a `mapInArrow` query, with a tag of its own by which it is interrupted. What only a SparkContext has is left
out: the FAIR pool, the lane's name in Spark's UI, which executor has a lane and whether it is decommissioned, and how
many task slots a cluster has.
"""

from __future__ import annotations

import pickle
import re
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from keylane.errors import UsageError
from keylane.foreign_errors import line_of
from keylane.spark.checks import LOOKED_AT, check_settings
from keylane.spark.jobs import JobThreads, failure_of_job, result_of
from keylane.spark.shipping import arrow_body
from keylane.spark.slots import check_count
from keylane.telling import logger_of
from keylane.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from keylane.spark.jobs import JobResult

logger = logger_of(__name__)

CLIENT_HOST = "keylane.client.host"
"""A setting of the session: under which host executors reach this client, where that is not its address on the way to
the server."""
ANSWER_S = 1.0
"""How long a server may take to accept a connection: the supervisor waits for it."""
UNKNOWN = 1_000_000
"""Task slots of a cluster: nobody tells a client."""


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


class ConnectSession:
    """What `start` needs of a session."""

    def __init__(self, spark: SparkSession) -> None:
        """Raises `UsageError` for a session that cannot run lanes."""
        session: Any = spark
        if session.is_stopped:
            raise UsageError("the Spark session is stopped: start a new one")
        self._spark = session
        check_settings({name: value for name in LOOKED_AT if (value := self.setting(name)) is not None})
        self.master = self.setting("spark.master")
        self.ui: str | None = None  # a client is not told

    def setting(self, name: str) -> str | None:
        """Of the session, or of its server."""
        found: str | None = self._spark.conf.get(name, None)
        return found

    def slots(self, *, allow_all: bool, task_cpus: float | None) -> ConnectSlots:
        """Raises `UsageError` for `task_cpus`."""
        if task_cpus is not None:
            raise UsageError(
                f"task_cpus={task_cpus!r}: not through Spark Connect, where lanes are queries: set spark.task.cpus of "
                "the server"
            )
        return ConnectSlots(self.master, allow_all)

    def jobs(self, run_id: str, group: str, task_cpus: float | None) -> ConnectLaneJobs:  # noqa: ARG002 - None, by `slots`
        return ConnectLaneJobs(self._spark, run_id, group)

    def addresses(self) -> tuple[str, str]:
        """Where to listen, and under which host lanes connect: this client's address on the way to the server."""
        if (host := self.setting(CLIENT_HOST)) is not None:
            return "0.0.0.0", host
        server = urlsplit(f"//{self._spark.client.host}").hostname or "127.0.0.1"
        return (ours := _address_towards(server)), ours


def _address_towards(server: str) -> str:
    """This machine's. Nothing is sent."""
    kind, _, _, _, place = socket.getaddrinfo(server, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


@dataclass(frozen=True, slots=True)
class ConnectSlots:
    """The task slots of a local server; those of a cluster are not known, and its lanes wait until there are some."""

    master: str | None
    allow_all: bool

    def check(self, lanes: int) -> int:
        """`lanes`. Raises `UsageError` when the server does not hold them."""
        check_count(lanes)
        if lanes > (room := self.room()):
            raise UsageError(
                f"lanes={lanes} on {self.master} would take more than its task slots but one: run at most {room} "
                f"lanes, give the server local[{lanes + 1}], or pass allow_all_slots=True"
            )
        return lanes

    def default(self, partitions: int) -> int:
        """Raises `UsageError` where nobody tells how many slots there are."""
        if (room := self.room()) >= UNKNOWN:
            raise UsageError(
                f"lanes=None on {self.master}: a client of Spark Connect is not told how many task slots there are: "
                "give a number of lanes that leaves one free"
            )
        return max(self.check(1), min(partitions, room))

    def room(self) -> int:
        """How many lanes there is room for, beside the slot that stays free."""
        local = re.fullmatch(r"local(?:\[(\d+)(?:,\d+)?\])?", self.master or "")
        return UNKNOWN if local is None else int(local[1] or 1) - (not self.allow_all)


class ConnectLaneJobs:
    """Starts and interrupts lanes of one Connect session.

    Thread safety: one thread calls the methods; `on_end` is called in the job's thread.
    """

    def __init__(self, spark: Any, run_id: str, group: str) -> None:
        self._spark = spark
        self._run_id = run_id
        self._group = group
        self._threads = JobThreads()
        self._tags: dict[int, str] = {}
        """Of each lane's newest query."""
        self._interrupting: set[str] = set()
        """Tags that the server is asked to interrupt, and has not answered."""
        self._submitted = 0

    def submit(self, lane: int, shipment: bytes, on_end: Callable[[JobResult], None]) -> None:
        """Starts the lane's query; `on_end` gets its result once, whatever happens."""
        self._submitted += 1
        tag = self._tags[lane] = f"keylane-{self._run_id}-lane-{lane}-{self._submitted}"
        self._threads.start(lane, lambda: on_end(self._run(tag, shipment)))

    def cancel(self, lane: int) -> None:
        """Interrupts the lane's query. Spark kills its Python worker two seconds later.

        Returns at once: Spark's client asks a server that does not answer again and again, for ten minutes.
        """
        tag = self._tags[lane]
        if tag not in self._interrupting:
            self._interrupting.add(tag)
            threading.Thread(target=self._interrupt, args=[tag], name=f"{tag}-interrupt", daemon=True).start()

    def _interrupt(self, tag: str) -> None:
        try:
            self._spark.interruptTag(tag)
        except Exception as error:  # the session was stopped, or the server is gone: its queries are gone as well
            logger.debug("%s not interrupted: %s", tag, line_of(error))
        finally:
            self._interrupting.discard(tag)

    def executor_of(self, lane: int) -> str | None:  # noqa: ARG002
        """A client is not told."""
        return None

    def is_decommissioned(self, executor_id: str) -> bool:  # noqa: ARG002
        """A client is not told; the lane drains when its executor goes, as it does without a word."""
        return False

    def silence(self) -> str:
        """That the server does not answer, in words; empty where it does. Asked over a connection of its own: Spark's
        client says for ten minutes nothing of a server that is gone."""
        endpoint = str(self._spark.client._builder.endpoint)  # noqa: SLF001 - the client's own property has no port
        place = urlsplit(f"//{endpoint}")
        try:
            socket.create_connection((place.hostname or "", place.port or 0), ANSWER_S).close()
        except OSError as error:
            return f"the Spark Connect server at {endpoint} does not answer ({error.strerror or error})"
        return ""

    def describe(self, lane: int, partitions: tuple[str, ...], figures: str) -> None:
        """A query's description stays what it was."""

    def join(self, timeout_s: float) -> None:
        """Waits for the queries' threads."""
        self._threads.join(timeout_s)

    def _run(self, tag: str, shipment: bytes) -> JobResult:
        try:
            self._spark.addTag(tag)  # of this thread's queries
            rows = self._spark.range(0, 1, 1, 1).mapInArrow(arrow_body(shipment, __version__), "result binary")
            ((result,),) = rows.collect()
            kind, value = pickle.loads(result)  # from the lane, through Spark
        except Exception as error:  # a query fails in many ways; what they mean is told apart below
            return failure_of_job(error, lambda: self._spark.is_stopped, "the server's")
        return result_of(kind, value)
