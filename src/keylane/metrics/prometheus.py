"""Metrics for Prometheus: a collector for a registry of one's own, or a small server. Needs the extra `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.flow.workers import BUCKETS, Histogram, upper_bound_s
from keylane.metrics.families import COUNTERS, families, health_families, lane_families
from keylane.metrics.pages import Page, PageServer, health_pages

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError:
    raise UsageError(
        "keylane.metrics.prometheus needs prometheus-client: run `pip install 'keylane[metrics]'`"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from keylane.consumer.health import Health
    from keylane.consumer.snapshot import Snapshot
    from keylane.metrics.families import Family, Lane

_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class FamilyCollector(Collector):
    """Asks sources for named metrics at each scrape, and shows each metric once. Thread safety: as the sources are."""

    def __init__(self, source: Callable[[], Iterable[Family]], labels: Mapping[str, str] | None = None) -> None:
        self._sources = [(source, dict(labels or {}))]

    def add_families(self, source: Callable[[], Iterable[Family]], labels: Mapping[str, str]) -> None:
        """Another source. Raises `UsageError` unless its labels have the same names as the others' and other values."""
        given = dict(labels)
        for _, others in self._sources:
            if set(others) != set(given) or others == given:
                raise UsageError(
                    f"labels={given!r} beside {others!r}: give each source of a collector the same names of labels, "
                    "and values of its own"
                )
        self._sources.append((source, given))

    def collect(self) -> Iterator[Metric]:
        metrics: dict[str, Any] = {}
        for source, labels in self._sources:
            for family in source():
                if family.name not in metrics:
                    names = [*labels, *(family.samples[0].labels if family.samples else ())]
                    metrics[family.name] = _KINDS[family.kind](family.name, family.help, labels=names)
                elif family.samples and not metrics[family.name].samples:  # the ones before had none, and so no names
                    names = [*labels, *family.samples[0].labels]
                    metrics[family.name] = _KINDS[family.kind](family.name, family.help, labels=names)
                _add_samples(metrics[family.name], family, labels)
        yield from metrics.values()

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that a registry does not ask before there is anything."""
        return iter(())


def _add_samples(metric: Any, family: Family, labels: Mapping[str, str]) -> None:
    for sample in family.samples:
        values = [*labels.values(), *sample.labels.values()]
        if isinstance(sample.value, Histogram):
            metric.add_metric(values, _buckets(sample.value), sum_value=sample.value.sum_s)
        else:
            metric.add_metric(values, sample.value)


class SnapshotCollector(FamilyCollector):
    """Asks for a snapshot at each scrape: `REGISTRY.register(SnapshotCollector(consumer.snapshot))`.

    `labels` are put on every sample, to tell consumers of one process apart: `add` the others to the first one's
    collector. A registry refuses a second collector (`ValueError: Duplicated timeseries`), since strict readers want
    each metric once. With `health` (`consumer.health`) there are the metrics of the probes, with `lanes`
    (`lambda: query.lanes`) those of each lane. Thread safety: as these are.
    """

    def __init__(
        self,
        source: Callable[[], Snapshot],
        labels: Mapping[str, str] | None = None,
        health: Callable[[], Health] | None = None,
        lanes: Callable[[], Iterable[Lane]] | None = None,
    ) -> None:
        super().__init__(_families_of(source, health, lanes), labels)

    def add(
        self,
        source: Callable[[], Snapshot],
        labels: Mapping[str, str],
        health: Callable[[], Health] | None = None,
        lanes: Callable[[], Iterable[Lane]] | None = None,
    ) -> None:
        """Another consumer of this process, under labels of the same names and with values of its own.

        Raises `UsageError` for other names, or for values that are taken.
        """
        self.add_families(_families_of(source, health, lanes), labels)

    def describe(self) -> Iterator[Metric]:
        """A metric that each consumer has, so that a registry sees a second collector."""
        yield CounterMetricFamily("keylane_processed", COUNTERS["processed"])


def _families_of(
    source: Callable[[], Snapshot],
    health: Callable[[], Health] | None,
    lanes: Callable[[], Iterable[Lane]] | None,
) -> Callable[[], Iterator[Family]]:
    def named() -> Iterator[Family]:
        yield from families(source())
        if health is not None:
            yield from health_families(health())
        if lanes is not None:
            yield from lane_families(lanes())

    return named


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    """Cumulative counts, as Prometheus has them."""
    made, count = [], 0
    for bucket in range(BUCKETS):
        count += histogram.counts[bucket]
        bound = "+Inf" if bucket == BUCKETS - 1 else f"{upper_bound_s(bucket):.9g}"
        made.append((bound, count))
    return made


def metrics_page(collector: Collector) -> dict[str, Callable[[str], Page]]:
    """`/metrics`, for a `PageServer`."""
    registry = CollectorRegistry()
    registry.register(collector)

    def metrics(accepted: str) -> Page:
        encode, content_type = choose_encoder(accepted)
        return Page(200, encode(registry), content_type)

    return {"/metrics": metrics}


class MetricsServer(PageServer):
    """Serves `/metrics` on a thread of its own while its `with` block runs; with `health`, `/healthz` and `/readyz`.
    What `labels`, `health` and `lanes` add to the metrics is `SnapshotCollector`'s.

    Raises `PeerError` when the port cannot be had. Port 0 takes a free one; `port` says which.
    """

    def __init__(
        self,
        source: Callable[[], Snapshot],
        port: int,
        host: str = "127.0.0.1",
        labels: Mapping[str, str] | None = None,
        health: Callable[[], Health] | None = None,
        lanes: Callable[[], Iterable[Lane]] | None = None,
    ) -> None:
        pages = metrics_page(SnapshotCollector(source, labels, health, lanes))
        super().__init__(pages | ({} if health is None else health_pages(health)), port, host, "metrics")
