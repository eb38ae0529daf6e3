"""examples/monitoring: the alerts fire when they have to and not else, the dashboard shows what a member serves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from peers import free_ports
from prometheus_client.parser import text_string_to_metric_families

import keylane as kl
from keylane.metrics.prometheus import MetricsServer
from keylane.parallel_consumer import ParallelConsumer
from keylane.spark.lane_record import LaneStatus
from keylane.testing.embedded import EmbeddedBroker
from kit.filling import filling
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
CASES = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
PANELS = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
SCALED_OBJECT = ROOT / "examples/kubernetes/scaling/scaledobject.yaml"
SCALED = yaml.safe_load(SCALED_OBJECT.read_text())["spec"]["triggers"][0]["metadata"]
ALERTS = {rule["alert"]: rule for rule in RULES}
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_THE_TARGET = {"job", "instance", "pod"}
"""Labels that Prometheus adds to each sample."""
LANES = (LaneStatus(0, "running", 1, "host", "1", 1, 0, ()),)
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install --no-install-recommends prometheus"
)


class ServiceDownError(Exception):
    """What the service says when it is down."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the page of a member that has worked, and holds records for a service that is down."""

    def handler(record: kl.Record) -> None:
        if record.key == b"held":
            raise ServiceDownError

    with EmbeddedBroker(topics={"orders": 2}) as broker:
        with filling(broker.bootstrap_servers) as producer:
            for key in (b"held", *(b"%d" % number for number in range(50))):
                producer.produce(kl.Output("orders", key=key, value=b"secret"))
        pipeline = kl.Pipeline(
            kafka={"bootstrap.servers": broker.bootstrap_servers, "group.id": "scoring"},
            topics=["orders"],
            handler=handler,
            offset_reset="earliest",
            retries=kl.Retries(max_attempts=1),
            breaker=kl.Breaker(
                errors=ServiceDownError, target=lambda record: "held" if record.key == b"held" else "up"
            ),
        )
        consumer = ParallelConsumer(pipeline)
        thread = threading.Thread(target=consumer.run)
        labels = {"group": "scoring"}
        with MetricsServer(consumer.snapshot, 0, labels=labels, health=consumer.health, lanes=lambda: LANES) as server:
            thread.start()
            try:
                until(lambda: consumer.snapshot().processed == 50 and bool(consumer.snapshot().breakers), "it works")
                until(lambda: all(one.lag is not None for one in consumer.snapshot().partitions), "both have a commit")
                yield f"127.0.0.1:{server.port}"
            finally:
                consumer.close("now")
                thread.join()


@pytest.fixture(scope="module")
def served(address: str) -> dict[str, set[str]]:
    """The labels of each sample's name."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def unknown(expression: str, served: dict[str, set[str]]) -> list[str]:
    """Names of metrics, and labels in selectors and groupings, that no page has."""
    names = re.findall(r"\bkeylane_\w+", expression)
    has = OF_THE_TARGET.union(*(served.get(name, set()) for name in names))
    said = re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression)
    labels = [label.strip() for group in said for label in group.split(",")]
    labels += re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    return [one for one in names if one not in served] + [one for one in labels if one not in has]


def test_alerts_dashboard_and_scaling_are_over_what_a_running_member_serves(served: dict[str, set[str]]) -> None:
    expressions = [rule["expr"] for rule in RULES] + SHOWN + [SCALED["query"]]
    assert {one: found for one in expressions if (found := unknown(one, served))} == {}
    told = re.findall(r"\$labels\.(\w+)", (FOLDER / "alerts.yaml").read_text())
    told += re.findall(r"{{(\w+)}}", json.dumps(PANELS))
    assert {*told} <= OF_THE_TARGET.union(*served.values())


def test_each_alert_leads_to_its_heading_and_each_such_heading_to_its_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    headings = {
        "docs/operations.md#" + re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-"): alert
        for title, alert in re.findall(r"^## (.+)\n\n\*\*Alert.\*\* `(\w+)`", page, re.MULTILINE)
    }
    assert headings == {rule["annotations"]["runbook_url"]: name for name, rule in ALERTS.items()}
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [(one["alertname"], bool(one.get("exp_alerts"))) for case in CASES for one in case["alert_rule_test"]]
    assert {*cases} == {(name, fires) for name in ALERTS for fires in (True, False)}


def promtool(folder: Path, *arguments: str) -> tuple[int, str]:
    """Its exit code, and what it says."""
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def with_rules(folder: Path, rules: list[dict[str, Any]]) -> Path:
    """A folder with these alerts, and all cases."""
    shutil.copy(FOLDER / "alerts.test.yaml", folder)
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "keylane", "rules": rules}]}))
    return folder


@needs_prometheus
def test_the_alerts_fire_on_recorded_series_and_not_on_others() -> None:
    code, said = promtool(FOLDER, "check", "rules", "alerts.yaml")
    assert code == 0, said
    assert f"{len(RULES)} rules found" in said
    code, said = promtool(FOLDER, "test", "rules", "alerts.test.yaml")
    assert code == 0, said


@needs_prometheus
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("KeylaneNothingCompletes", " unless keylane_partition_on_hold == 1", ""),
        ("KeylaneNothingCompletes", " + increase(keylane_dead_lettered_total[10m])", ""),
        ("KeylaneOldestRecord", "> 600", "> 60"),
        ("KeylaneDeadLetters", " offset 10m", " offset 40m"),
        ("KeylaneStuck", "> 0", "> 1"),
        ("KeylaneRetries", "rate(keylane_processed_total[10m])", "0"),
        ("KeylaneServiceDown", "> 120", "> 60"),
        ("KeylaneCommitsFail", "[5m]", "[15m]"),
        ("KeylaneRecordsLost", "increase(keylane_lost_to_retention_total[10m]) > 0\nor\n", ""),
        ("KeylaneNotReady", "== 0", "== 1"),
        ("KeylaneGroupGone", "without (instance, pod)", "without (pod)"),
        ("KeylaneLaneRestarts", "> 2", "> 0"),
    ],
)
def test_the_recorded_series_notice_another_alert(tmp_path: Path, name: str, right: str, wrong: str) -> None:
    text = ALERTS[name]["expr"]
    assert right in text
    changed = ALERTS[name] | {"expr": text.replace(right, wrong)}
    folder = with_rules(tmp_path, [changed if rule["alert"] == name else rule for rule in RULES])
    code, said = promtool(folder, "test", "rules", "alerts.test.yaml")
    assert code == 1, said
    assert f"alertname: {name}," in said


@needs_prometheus
@pytest.mark.parametrize("name", [name for name, rule in ALERTS.items() if "for" in rule])
def test_the_recorded_series_notice_an_alert_that_does_not_wait(tmp_path: Path, name: str) -> None:
    folder = with_rules(tmp_path, [rule | {"for": "0s"} if rule["alert"] == name else rule for rule in RULES])
    code, said = promtool(folder, "test", "rules", "alerts.test.yaml")
    assert code == 1, said
    assert f"alertname: {name}," in said


CONFIG = """
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: keylane
    static_configs: [{targets: ["ADDRESS"]}]
"""


@needs_prometheus
def test_a_prometheus_that_scrapes_a_member_has_what_panels_show_and_what_scales(tmp_path: Path, address: str) -> None:
    shutil.copy(FOLDER / "alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(CONFIG.replace("ADDRESS", address))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"

    def ask(path: str, **query: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def has(expression: str) -> bool:
        try:
            return bool(ask("query", query=expression)["result"])
        except OSError:  # it is not up yet
            return False

    command = [
        "prometheus",
        "--config.file=prometheus.yaml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as running,
    ):
        try:
            until(lambda: has("rate(keylane_processed_total[1m])"), "two scrapes")
            asked = {one: one.replace("$group", "scoring").replace("$__rate_interval", "1m") for one in SHOWN}
            # A scrape that took longer than 200 ms ends all series until the next one.
            for one, expression in asked.items():
                until(lambda expression=expression: has(expression), one)  # type: ignore[misc]
            scaling = SCALED["query"].replace('group="orders"', 'group="scoring"')
            until(lambda: has(f"{scaling} == 1"), "the record that is held")
            until(lambda: has("ALERTS"), "the rules are evaluated")
            (group,) = ask("rules")["groups"]
            assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(ALERTS, "ok")
        finally:
            running.terminate()
