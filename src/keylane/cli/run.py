"""`keylane run`: runs the pipeline in a user's file, in this process or on Spark lanes, and shows how far it is.

Exit codes: 0 when all was done (`--available-now`), or when a run without an end was stopped by Ctrl-C or SIGTERM: it
has drained and committed, which is all that it was asked for. 130 when `--available-now` was stopped before its end. 1
when something failed, 2 for wrong usage and for errors in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from keylane.cli.arguments import assignment, seconds, spark_master
from keylane.cli.asking import add_offsets_servers, offsets_servers_of
from keylane.cli.exits import EXIT_INTERRUPTED
from keylane.cli.grace import short_grace
from keylane.consumer.snapshot import Snapshot
from keylane.desk import TOKEN_VARIABLE
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keylane.cli.progress import PatientStream
    from keylane.cli.startup import Running, Startup
    from keylane.demo.progress import Progress
    from keylane.demo.stop import StopRequest
    from keylane.kafka.group_standing import Standing
    from keylane.pipeline import Pipeline

logger = logger_of("keylane.cli")

DESCRIPTION = """\
Runs the keylane.Pipeline that FILE assigns at its top level. Without --available-now it runs until Ctrl-C or SIGTERM;
it then finishes what is in flight, commits, and exits with 0.
"""

EPILOG = """\
examples:
  keylane run orders.py                              until Ctrl-C, in this process
  keylane run orders.py:scoring --available-now      one of several pipelines, until what is there is done
  keylane run orders.py --json | jq .lag             a JSON object at a change, and one each minute
  keylane run orders.py --metrics-port 9100          with metrics at http://127.0.0.1:9100/metrics
  keylane run orders.py --health-port 8080           with /healthz and /readyz for the probes of Kubernetes
  keylane run orders.py --operate                    for `keylane operate`, which shows and changes what it does
  keylane run orders.py --spark 'local[4]' --lanes 3 on Spark lanes
"""

SHOW_INTERVAL_S = 0.25
PROGRESS_INTERVAL_S = 60
"""Between two lines where no terminal shows them, but for changes: little enough for a log that is kept."""
STANDING_MS = 5_000
"""How long the summary waits to learn where the group stands: what was to be done is done by then."""
RATE_WINDOW_S = 2.0
"""The shown rate is over this long."""

OLD_MS = 1_000
"""The record that has been worked on for longest is shown from this age on."""

WAIT_S = 0.25
"""Between two looks for a stop request while lanes run."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane run`."""
    parser = subparsers.add_parser(
        "run",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", metavar="FILE[:NAME]", help="a Python file with a keylane.Pipeline; NAME when it has several")
    add(
        "--spark",
        type=spark_master,
        metavar="MASTER",
        help="run on Spark lanes, for example 'local[4]'; default: in this process",
    )
    add("--lanes", type=int, metavar="N", help="Spark lanes (default: as many as leave one task slot free)")
    add("--conf", type=assignment, action="append", default=[], metavar="NAME=VALUE", help="a setting for Spark")
    add("--available-now", action="store_true", help="end when what is in the topics now is done")
    add("--json", action="store_true", help="JSON objects in place of lines, and a last one, on standard output")
    add(
        "--progress-interval",
        type=seconds,
        default=PROGRESS_INTERVAL_S,
        metavar="S",
        help="seconds between two lines (60), beside those at a change; a terminal is always up to date",
    )
    add("--metrics-port", type=int, metavar="N", help="serve /metrics for Prometheus there (0: a free port)")
    add("--metrics-host", default="127.0.0.1", metavar="HOST", help="… on this address (127.0.0.1; :: for all)")
    add("--health-port", type=int, metavar="N", help="serve /healthz and /readyz for probes there, on all addresses")
    add_offsets_servers(parser, "the group, while its records are at bootstrap.servers")
    add("--wait-for-brokers", action="store_true", help="wait while no broker answers, instead of failing after 10 s")
    add(
        "--ready-when-assigned",
        action="store_true",
        help="/readyz is 503 until the group has given this member its first assignment",
    )
    add("--client-id", metavar="NAME", help="what brokers call this member, such as its pod's name (keylane)")
    add(
        "--grace",
        type=seconds,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL here (terminationGracePeriodSeconds): one that is too short is said",
    )
    add("--operate", action="store_true", help=f"report, and with a token in {TOKEN_VARIABLE} take commands")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from keylane.cli.logs import leave_to_application
    from keylane.cli.pipeline_file import load_pipeline, place_in, place_in_notes
    from keylane.cli.progress import PatientStream, progress_on
    from keylane.cli.signals import stopping
    from keylane.cli.startup import Startup
    from keylane.consumer.closing import FINAL_COMMIT_S
    from keylane.demo.options import check_local_slots
    from keylane.demo.stop import StopRequest
    from keylane.errors import HandlerError, PeerError, UsageError
    from keylane.left_behind import StoppedError
    from keylane.pipeline import Operations

    if args.spark is None and (args.lanes is not None or args.conf):
        option = "--lanes" if args.lanes is not None else "--conf"
        raise UsageError(f"{option} goes with --spark MASTER: give that too, or leave {option} out")
    if args.spark is not None and args.client_id is not None:
        raise UsageError("--client-id names a member in this process: leave it out, lanes have names of their own")
    if args.spark is not None and args.ready_when_assigned:
        raise UsageError("--ready-when-assigned is of a member in this process: lanes are ready while one of them runs")
    if args.spark is not None:
        check_local_slots(args.spark, args.lanes, "--spark")
    path, pipeline = load_pipeline(args.file)
    leave_to_application(verbose=args.verbose)
    for line in short_grace(pipeline, args.grace, args.spark, dict(args.conf)):
        logger.warning("%s", line)
    pipeline = replace(pipeline, kafka={**pipeline.kafka, **offsets_servers_of(args)})
    if args.operate and pipeline.operations is None:
        pipeline = replace(pipeline, operations=Operations(token=os.environ.get(TOKEN_VARIABLE) or None))
    stop = StopRequest()
    progress = progress_on(sys.stderr if args.json else sys.stdout, args.progress_interval, has_times=True)
    lines = PatientStream(sys.stdout) if args.json else None
    watch = Watch(progress, lines, args.progress_interval, has_end=args.available_now)
    with stopping(stop):
        try:
            startup = Startup(stop)
            with serving(startup, pipeline, watch, args), suppress(StoppedError):
                if args.wait_for_brokers:
                    startup.wait_for_brokers(pipeline, progress)
                run_it = run_here if args.spark is None else run_on_spark
                run_it(pipeline, watch, stop, startup, args)
        except HandlerError as error:
            place = place_in(path, error.__cause__) if error.__cause__ is not None else place_in_notes(path, error)
            raise HandlerError(f"{place}: {error}") from error
    watch.summary(pipeline, stopped=stop.requested)
    if watch.ended_uncommitted:
        raise PeerError(
            f"no broker acknowledged the last commit within {FINAL_COMMIT_S:g} s: what was processed since the commit "
            "before runs again at the next start"
        )
    return EXIT_INTERRUPTED if stop.requested and args.available_now else 0


def run_here(pipeline: Pipeline, watch: Watch, stop: StopRequest, startup: Startup, args: argparse.Namespace) -> None:
    """One `ParallelConsumer` in this process; another one where its clients have certificates that are exchanged."""
    from keylane.errors import ExchangedCertificatesError
    from keylane.parallel_consumer import ParallelConsumer

    while True:
        consumer = ParallelConsumer(
            pipeline,
            ending_offsets="latest" if args.available_now else None,
            client_id=args.client_id,
            ready_when_assigned=args.ready_when_assigned,
        )
        startup.began(consumer)
        try:
            with (
                consumer,
                watch.watching(consumer, f"{_what(pipeline)} in this process"),
                stop.calling(consumer.stop),
            ):
                consumer.run()
        except ExchangedCertificatesError as error:
            if stop.requested:
                raise
            watch.progress.say(f"{error}: it starts again")
        else:
            return


def run_on_spark(
    pipeline: Pipeline, watch: Watch, stop: StopRequest, startup: Startup, args: argparse.Namespace
) -> None:
    """Lanes of a session of our own. Raises `StoppedError` for a stop before they run."""
    from keylane.cli.logs import mute_py4j
    from keylane.cli.startup import STANDS_S
    from keylane.demo.backends import end_session
    from keylane.demo.extras import require

    require("pyspark", "pyarrow", "cloudpickle", extra="spark")
    import keylane.spark
    from keylane.errors import SessionEndedError

    mute_py4j()
    with watch.progress.step(f"Starting Spark on {args.spark}"):
        spark = startup.do(
            f"Spark starts on {args.spark}",
            lambda: keylane.spark.session(args.spark, f"keylane {pipeline.group_id}", **dict(args.conf)),
            STANDS_S,
        )
    try:
        trigger = {"availableNow": True} if args.available_now else None
        query = startup.do(
            f"lanes wait for executors on {args.spark}, and for what the brokers say",
            lambda: keylane.spark.start(pipeline, spark, lanes=args.lanes, trigger=trigger),
        )
        startup.began(query)
        try:
            with watch.watching(query, f"{_what(pipeline)} on Spark lanes, {args.spark}"):
                while not query.awaitTermination(WAIT_S):
                    if stop.requested:
                        query.stop()
        except SessionEndedError:  # a signal to the process group ends Spark's JVM too, and lanes drain by themselves
            if not stop.requested:
                raise
        finally:
            query.stop()
    finally:
        end_session(spark)


@contextmanager
def serving(startup: Startup, pipeline: Pipeline, watch: Watch, args: argparse.Namespace) -> Iterator[None]:
    """`/metrics`, `/healthz` and `/readyz` until the block ends, on the ports that were given."""
    with ExitStack() as servers:
        if args.metrics_port is not None:
            from keylane.metrics.pages import place
            from keylane.metrics.prometheus import MetricsServer

            labels = {"group": pipeline.group_id}
            lanes = None if args.spark is None else startup.lanes
            metrics = servers.enter_context(
                MetricsServer(startup.snapshot, args.metrics_port, args.metrics_host, labels, startup.health, lanes)
            )
            watch.progress.say(f"metrics at http://{place(args.metrics_host, metrics.port)}/metrics")
        if args.health_port is not None:
            from keylane.metrics.pages import EVERY_ADDRESS, HealthServer, place

            health = servers.enter_context(HealthServer(startup.health, args.health_port, EVERY_ADDRESS))
            watch.progress.say(f"health at http://{place(EVERY_ADDRESS, health.port)}/healthz and /readyz")
        yield


def _what(pipeline: Pipeline) -> str:
    return f"{', '.join(pipeline.reads)} for group {pipeline.group_id}"


class Watch:
    """Looks at a running pipeline from a thread of its own and tells people, or machines, what it sees."""

    def __init__(
        self,
        progress: Progress,
        lines: PatientStream | None = None,
        interval_s: float = PROGRESS_INTERVAL_S,
        *,
        has_end: bool = False,
    ) -> None:
        """`lines`: where JSON goes, if it is wanted."""
        self.progress = progress
        self._has_end = has_end
        self._lines = lines
        self._interval_s = interval_s
        self._started = time.monotonic()
        self._last = Snapshot()
        self._had_partitions = False
        """Whether any were seen: before, nothing can have been done."""

    @contextmanager
    def watching(self, running: Running, title: str) -> Iterator[None]:
        """Show what runs until the block ends; the last look is taken then."""
        ended = threading.Event()
        with self.progress.step(title, 0 if self._has_end else None) as step:
            thread = threading.Thread(target=self._watch, args=(running, step.update, ended), name="keylane-watch")
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()
                # An earlier one may have run, whose uncommitted records this one has.
                self._last = self._last.changed({"ended_uncommitted": 0}).merge(running.snapshot())

    @property
    def ended_uncommitted(self) -> bool:
        """Whether brokers were away when what ran had ended."""
        return self._last.ended_uncommitted > 0

    def summary(self, pipeline: Pipeline, *, stopped: bool) -> None:
        """The last word: how much was done, and where the group stands, asked of the broker, if it is there."""
        snapshot = self._last
        seconds = time.monotonic() - self._started
        is_early = stopped and not self._had_partitions and not snapshot.processed
        standing, deleted = (None, []) if is_early or self.ended_uncommitted else _ask_standing(pipeline)
        if self._lines is not None:
            partitions = None if standing is None else [asdict(one) | {"lag": one.lag} for one in standing]
            left = dict(zip(("lag", "remaining"), (None, None) if standing is None else _left(standing), strict=True))
            self._print_json("summary", snapshot, seconds, stopped=stopped, **left, partitions=partitions)
        if is_early:
            self.progress.say(f"stopped after {seconds:.1f} s, before it had partitions: nothing was begun")
            return
        for line in summary_lines(snapshot, standing, seconds, stopped=stopped):
            self.progress.say(line)
        for topic in deleted:
            self.progress.say(f"  {topic}: deleted")

    def _watch(self, running: Running, update: Callable[..., None], ended: threading.Event) -> None:
        history: list[tuple[float, int]] = []
        printed = time.monotonic()
        state: tuple[object, ...] | None = None
        while not ended.wait(SHOW_INTERVAL_S):
            now, snapshot = time.monotonic(), running.snapshot()
            self._had_partitions = self._had_partitions or bool(snapshot.partitions)
            done = completed(snapshot)
            history.append((now, done))
            while now - history[0][0] > RATE_WINDOW_S:
                del history[0]
            total = done + (snapshot.remaining or 0) if self._has_end else None
            before, state = state, state_of(snapshot)
            is_news = before is not None and state != before
            update(done, note_of(snapshot, _rate(history)), total, is_news=is_news)
            if is_news or now - printed >= self._interval_s:
                printed = now
                self._print_json("progress", snapshot, now - self._started)

    def _print_json(self, event: str, snapshot: Snapshot, seconds: float, **more: Any) -> None:
        if self._lines is not None:
            first = {"event": event, "seconds": round(seconds, 3)}
            self._lines.write_line(json.dumps(first | snapshot.to_dict() | more))


def _ask_standing(pipeline: Pipeline) -> tuple[tuple[Standing, ...] | None, list[str]]:
    """Where the group stands, None if no broker says; and the topics that are no more."""
    from keylane.errors import BrokerUnavailableError
    from keylane.kafka.admin import Admin
    from keylane.kafka.group_standing import group_standing
    from keylane.kafka.logs import matching

    admin = Admin(pipeline.kafka, timeout_ms=STANDING_MS)
    try:
        there = admin.topics()
        read = matching(pipeline.reads, list(there))
        standing = group_standing(admin, pipeline.group_id, [topic for topic in read if topic in there])
    except BrokerUnavailableError:
        return None, []
    return standing, [topic for topic in read if topic not in there]


def _rate(history: list[tuple[float, int]]) -> float:
    (first_at, first), (last_at, last) = history[0], history[-1]
    return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


def completed(snapshot: Snapshot) -> int:
    """Records that are through, one way or another."""
    return snapshot.processed + snapshot.dead_lettered + snapshot.skipped


def state_of(snapshot: Snapshot) -> tuple[object, ...]:
    """What is worth a line when it changes: whether anything runs, which kinds of trouble there were, which services
    are down, how many partitions there are, and whether all waits for something."""
    is_idle = not snapshot.in_flight and not snapshot.buffered
    troubles = tuple(what for what, _ in _troubles(snapshot))
    down = tuple(one.target for one in snapshot.breakers)
    return is_idle, troubles, down, len(snapshot.partitions), snapshot.waits is not None


def note_of(snapshot: Snapshot, rate: float) -> str:
    """One short line about now; what is zero and would be bad is left out."""
    parts = [f"{rate:,.0f}/s", f"{snapshot.in_flight} in flight"]
    left = (("remaining", snapshot.remaining), ("lag", snapshot.lag))
    parts += [f"{what} {count:,}" for what, count in left if count is not None]
    parts += [f"{count:,} {what}" for what, count in _troubles(snapshot)]
    oldest = snapshot.oldest
    if oldest is not None and oldest.age_ms >= OLD_MS:
        parts.append(f"{oldest.topic}-{oldest.partition}@{oldest.offset} for {oldest.age_ms / 1000:.0f} s")
    parts += [f"{one}: records are held" for one in snapshot.breakers]
    if snapshot.waits is not None:
        parts.append(str(snapshot.waits))
    return ", ".join(parts)


def summary_lines(
    snapshot: Snapshot, standing: Sequence[Standing] | None, seconds: float, *, stopped: bool
) -> list[str]:
    """A line for the run, and one for each partition that is not at its end; None: no broker says."""
    troubles = "".join(f", {count:,} {what}" for what, count in _troubles(snapshot))
    if standing is None:
        left = "where the group stands is not known, as no broker answers"
    else:
        lag, remaining = _left(standing)
        left = f"lag {lag:,}" + (f", remaining {remaining:,}" if remaining != lag else "")
    head = "stopped" if stopped else "done"
    lines = [f"{head}: {snapshot.processed:,} records processed in {seconds:.1f} s{troubles}; {left}"]
    return lines + [f"  {one}" for one in standing or () if one.lag]


def _left(standing: Sequence[Standing]) -> tuple[int, int]:
    """Lag, and what remains."""
    return sum(one.lag for one in standing), sum(one.remaining for one in standing)


def _troubles(snapshot: Snapshot) -> list[tuple[str, int]]:
    counts = [
        ("failed attempts", snapshot.failed),
        ("retries", snapshot.retried),
        ("dead-lettered", snapshot.dead_lettered),
        ("skipped", snapshot.skipped),
        ("lost to retention", snapshot.lost_to_retention),
    ]
    return [(what, count) for what, count in counts if count]
