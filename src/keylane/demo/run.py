"""The demo from the first step to the last. Everything it starts ends with it, whichever way it ends.

broker → flights produced → weather service → pipeline until lag 0 (watched from outside) → verdict → delays, picture
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from keylane.demo.backends import InProcess, OnLanes, end_session
from keylane.demo.cluster import Cluster
from keylane.demo.data import check_data, read_flights
from keylane.demo.extras import installed, require
from keylane.demo.folder import RunFolder
from keylane.demo.guard import BrokerGuard
from keylane.demo.observer import Observer, Sample, rate
from keylane.demo.report import Report, Stopped
from keylane.demo.service_process import ServiceProcess
from keylane.demo.verify import SEQUENCE_HEADER, Verdict, sequence_of, verify
from keylane.errors import PeerError
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.pipeline import Operations, topics_of_operations
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keylane.demo.backends import Backend
    from keylane.demo.delays import Delay
    from keylane.demo.options import DemoOptions
    from keylane.demo.progress import Progress, Step
    from keylane.demo.stop import StopRequest
    from keylane.pipeline import Pipeline

TOPIC = "flights"
OUTPUT = "flights.enriched"
PARTITIONS = 8

UPDATE_EVERY_RECORDS = 500

REPORT_INTERVAL_MS = 500
"""Of the members, where the page shows them: a run takes half a minute."""
WAIT_S = 3600.0
"""Of one wait for a stop request, which comes at any time."""

SPARK_SETTINGS = {
    # The JVM lives for half a minute: the second compiler and concurrent collectors would cost it more than they give
    # (measured on two busy cores: start and report take half as long).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",  # a second less to start; `--conf spark.ui.enabled=true` shows the lanes
    "spark.log.level": "ERROR",  # a newcomer's first run is not the place for Spark's warnings about itself
    "spark.sql.shuffle.partitions": str(PARTITIONS),  # the default of 200 is for clusters
}


class _StopRequested(Exception):  # noqa: N818 - ends the steps, is no error
    """Raised between steps and caught by `run_demo`; carries the title of the step it came in."""


def run_demo(
    options: DemoOptions,
    progress: Progress,
    stop: StopRequest,
    served: Callable[[str], None] = lambda _: None,
    reported: Callable[[Report], None] = lambda _: None,
) -> Report | Stopped:
    """Run it. With `options.ui`, `served` is told the page's address, and `reported` the report before the page waits
    for the stop request. Raises `KeylaneError`s of what fails; a stop request before the report gives a `Stopped`."""
    require("aiohttp", "matplotlib")
    check_data(options.records)
    if options.spark:
        require("pyspark", "pyarrow", "cloudpickle", extra="spark")
    with RunFolder(options) as folder, ExitStack() as stack:
        demo = _Demo(options, folder, progress, stop, stack)
        try:
            report = demo.run(served)
        except _StopRequested as request:
            return demo.stopped(str(request))
        except PeerError as error:
            raise folder.explained(error) from error
        if options.ui:
            reported(report)
            while not stop.wait(WAIT_S):
                pass
        return report


class _Demo:
    """The steps, in order, and what they pass on."""

    def __init__(
        self, options: DemoOptions, folder: RunFolder, progress: Progress, stop: StopRequest, stack: ExitStack
    ) -> None:
        self._options = options
        self._folder = folder
        self._progress = progress
        self._stop = stop
        self._stack = stack
        self._started = time.monotonic()
        self._cluster: Cluster | None = None
        self._guard: BrokerGuard | None = None
        self._operations: Operations | None = None

    def run(self, served: Callable[[str], None]) -> Report:
        cluster = self._cluster = self._start_cluster()
        self._produce(cluster)
        if self._options.ui:
            served(self._start_page(cluster))
        service = self._start_service()
        spark = self._start_spark() if self._options.spark else None
        samples, processed, seconds = self._process(cluster, service, spark)
        peak = service.stats().peak_in_flight
        lag = cluster.to_do(self._folder.state.group, TOPIC).lag
        verdict = self._verify(cluster)
        delays, parquet = self._summarise(cluster, spark)
        mode = f"{self._options.lanes} Spark lanes on {self._options.spark_master}" if spark else "in one process"
        picture = self._folder.results / "throughput.png"
        report = Report(
            ordering=self._options.ordering,
            mode=mode,
            processed=processed,
            seconds=seconds,
            total_seconds=time.monotonic() - self._started,
            peak_in_flight=peak,
            lag=lag,
            verdict=verdict,
            delays=tuple(delays),
            picture=str(picture),
            parquet=parquet,
            broker_restarts=self._guard.restarts if self._guard is not None else 0,
        )
        with self._step("Drawing the run"):
            self._draw(picture, samples, report)
        return report

    def stopped(self, during: str) -> Stopped:
        """Where the run stands, read while the broker is still there."""
        state = self._folder.state
        standing = self._cluster.standing(state.group, TOPIC) if self._cluster is not None else ()
        kept = str(self._options.keep) if self._options.keep is not None else None
        return Stopped(during=during, records=state.records, standing=standing, kept=kept)

    def _start_cluster(self) -> Cluster:
        state = self._folder.state
        if state.bootstrap is not None:
            with self._step(f"Connecting to {state.bootstrap}"):
                cluster = Cluster(state.bootstrap, self._options.client_settings)
                self._make_topics(cluster)
            return cluster
        from keylane.broker.process import BrokerProcess

        with self._step("Starting the embedded broker") as step:
            data, log = self._folder.broker_data, self._folder.path / "broker.log"
            broker = self._stack.enter_context(BrokerProcess(data, log=log))
            cluster = Cluster(broker.bootstrap)
            self._make_topics(cluster)
            self._guard = BrokerGuard(broker, self._progress.say, self._stop)
            step.end_note(f"{broker.bootstrap}, data in {data}")
        return cluster

    def _make_topics(self, cluster: Cluster) -> None:
        """Claim first, then create: after a crash between the two, the next run still knows its own."""
        state = self._folder.state
        if not state.made_topics:
            cluster.refuse_occupied([TOPIC, OUTPUT], PARTITIONS)
            self._folder.save(replace(state, made_topics=True))
        made = cluster.create_missing([TOPIC, OUTPUT], PARTITIONS)
        if state.bootstrap is not None and not self._folder.kept:
            self._stack.callback(cluster.delete, made)

    def _produce(self, cluster: Cluster) -> None:
        records = self._folder.state.records
        present: set[int] = set()
        if self._folder.resumed:
            present = {
                sequence_of(record)
                for batch in read_to_end(cluster.servers, TOPIC, settings=cluster.settings)
                for record in batch
            }
        with (
            self._step(f"Producing to {TOPIC} ({PARTITIONS} partitions)", records) as step,
            BulkProducer(cluster.servers, cluster.settings) as producer,
        ):
            for flight in read_flights(records):
                if flight.sequence % UPDATE_EVERY_RECORDS == 0:
                    step.update(len(present) + producer.delivered)
                    if self._stop.requested:
                        break
                if flight.sequence not in present:
                    header = (SEQUENCE_HEADER, str(flight.sequence).encode())
                    producer.produce(Output(TOPIC, flight.key, flight.value, headers=[header]))
            step.end_note(f"{records:,} flights" + (f", {len(present):,} were there" if present else ""))

    def _start_page(self, cluster: Cluster) -> str:
        """The page of the group; returns its address, with the token that acting takes."""
        from keylane.ui.page import Page

        group, token = self._folder.state.group, secrets.token_hex(16)
        self._operations = Operations(token=token, report_interval_ms=REPORT_INTERVAL_MS, show_keys=True)
        if self._folder.state.bootstrap is not None:
            self._stack.callback(cluster.delete, set(topics_of_operations(group)))
        page = self._stack.enter_context(Page(cluster.kafka, cluster.admin, token=token))
        return f"{page.url}#/group/{group}?token={token}"

    def _start_service(self) -> ServiceProcess:
        with self._step("Starting the weather service") as step:
            service = self._stack.enter_context(ServiceProcess(self._options.latency_ms))
            step.end_note(f"{service.url}, {self._options.latency_ms} ms an answer")
        return service

    def _start_spark(self) -> SparkSession:
        import keylane.spark

        master = self._options.spark_master
        shown = {"spark.ui.enabled": "true"} if self._options.ui else {}
        with self._step(f"Starting Spark on {master}"):
            settings = SPARK_SETTINGS | shown | dict(self._options.spark_conf)
            spark = keylane.spark.session(master, "keylane demo", **settings)
            self._stack.callback(end_session, spark)
        return spark

    def _process(
        self, cluster: Cluster, service: ServiceProcess, spark: SparkSession | None
    ) -> tuple[list[Sample], int, float]:
        """Run the pipeline until lag 0. Returns the samples, the records processed, and the seconds taken."""
        options, state = self._options, self._folder.state
        backend: Backend = InProcess() if spark is None else OnLanes(spark, options.lanes)
        pipeline = self._pipeline(cluster, service, 1 if spark is None else options.lanes)
        to_do = cluster.to_do(state.group, TOPIC).remaining
        where = "in this process" if spark is None else f"on {options.lanes} Spark lanes"
        with self._step(f"Enriching {where}", to_do) as step:

            def show(sample: Sample) -> None:
                speed = f"{rate(observer.samples):,.0f}/s"
                left = f"remaining {sample.to_do.remaining:,}, lag {sample.to_do.lag:,}"
                note = f"{sample.in_flight} in flight, {speed}, {left}"
                step.update(min(sample.answered, to_do), note)

            look = self._guard.look if self._guard is not None else lambda: None
            observer = Observer(service.stats, lambda: cluster.to_do(state.group, TOPIC), show, look)
            started = time.monotonic()
            with observer:
                backend.run(pipeline, self._stop)
                seconds = time.monotonic() - started
            if self._guard is not None:
                self._guard.raise_failure()
        return observer.samples, to_do - cluster.to_do(state.group, TOPIC).remaining, seconds

    def _pipeline(self, cluster: Cluster, service: ServiceProcess, consumers: int) -> Pipeline:
        from keylane.demo.pipeline import flights_pipeline

        return flights_pipeline(
            cluster.servers,
            service.url,
            group=self._folder.state.group,
            topic=TOPIC,
            output=OUTPUT,
            ordering=self._options.ordering,
            max_concurrency=self._options.max_concurrency // consumers,
            settings=cluster.settings,
            operations=self._operations,
        )

    def _verify(self, cluster: Cluster) -> Verdict:
        state = self._folder.state
        with self._step(f"Holding {OUTPUT} against {TOPIC}"):
            return verify(
                cluster.servers,
                TOPIC,
                OUTPUT,
                ordering=state.ordering,
                expected=state.records,
                settings=cluster.settings,
            )

    def _summarise(self, cluster: Cluster, spark: SparkSession | None) -> tuple[list[Delay], str | None]:
        path = self._folder.results / "flights.enriched.parquet"
        with self._step("Delay by carrier and weather" + (" (Spark DataFrame, Parquet)" if spark else "")):
            if spark is not None:
                from keylane.demo.spark_report import write_and_summarise

                delays = write_and_summarise(spark, cluster.servers, OUTPUT, PARTITIONS, path, cluster.settings)
                return delays, str(path)
            from keylane.demo.delays import delays_of, read_rows, write_parquet

            rows = read_rows(cluster.servers, OUTPUT, cluster.settings)
            if not installed("pyarrow"):
                return delays_of(rows), None
            write_parquet(rows, path)
            return delays_of(rows), str(path)

    def _draw(self, path: Path, samples: list[Sample], report: Report) -> None:
        from keylane.demo.picture import save_picture

        service = f"a service that takes {self._options.latency_ms} ms an answer"
        subtitle = f"{report.mode}, {PARTITIONS} partitions, {service}: {report.judgement}"
        save_picture(path, samples, title=report.headline, subtitle=subtitle)

    @contextmanager
    def _step(self, title: str, total: int | None = None) -> Iterator[Step]:
        """A step of the progress; a stop request that came by its end ends the run there."""
        with self._progress.step(title, total) as step:
            yield step
        if self._stop.requested:
            raise _StopRequested(title)
