"""`keylane demo --no-spark` as a newcomer runs it: each ordering, stopped and gone on with, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from keylane.broker.process import BrokerProcess
from keylane.demo.rows import COLUMNS
from keylane.kafka.admin import Admin
from keylane.records import Output
from kit.filling import filling
from kit.page_client import PageClient
from kit.processes import Started

DEMO = [sys.executable, "-m", "keylane", "demo", "--no-spark", "--json"]
TIMEOUT_S = 120


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The current folder of a run, with a folder for temporary files of its own that must be empty afterwards."""
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(tmp_path) == []


def processes_of(place: Path) -> list[str]:
    """Command lines of processes that still work in a run's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve().is_relative_to(place):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended meanwhile
    return found


def environment(place: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(place / "tmp")}


def demo(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DEMO, *arguments],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def last_line(output: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


@pytest.mark.parametrize(
    ("ordering", "records", "latency_ms", "at_once"),
    [("key", 1_000, 200, 100), pytest.param("unordered", 2_000, 200, 100, marks=pytest.mark.soak)],
)
def test_each_ordering_loses_repeats_and_reorders_nothing(
    place: Path, ordering: str, records: int, latency_ms: int, at_once: int
) -> None:
    done = demo(place, "--records", str(records), "--ordering", ordering, "--latency-ms", str(latency_ms))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, "only the JSON goes to standard output"
    report = last_line(done.stdout)
    out_of_order = None if ordering == "unordered" else 0
    judged = {
        key: report[key] for key in ("records", "lost", "duplicated", "out_of_order", "altered", "foreign", "lag")
    }
    assert judged == {
        "records": records,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": out_of_order,
        "altered": 0,
        "foreign": 0,
        "lag": 0,
    }
    assert report["peak_in_flight"] >= at_once
    assert report["seconds"] > 0
    assert report["records_per_second"] == pytest.approx(records / report["seconds"], rel=0.01)
    assert (report["ordering"], report["mode"], report["interrupted"]) == (ordering, "in one process", False)
    assert (place / report["picture"]).read_bytes().startswith(b"\x89PNG")
    table = pq.read_table(place / report["parquet"])
    assert (table.num_rows, table.column_names) == (records, list(COLUMNS))
    assert done.stderr.splitlines()[0].startswith("keylane demo: ")
    assert "United Air Lines" in done.stderr


@pytest.mark.full
def test_a_stopped_run_says_where_and_the_next_one_goes_on_there(place: Path) -> None:
    arguments = ["--keep", "kept", "--records", "1200", "--latency-ms", "250", "--max-concurrency", "100"]
    with Started(
        [*DEMO, *arguments],
        cwd=place,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stderr is not None
        assert run.stdout is not None
        for line in run.stderr:
            if re.match(r"Enriching\D*[1-9][\d,]* of 1,200", line):
                break
        run.send_signal(signal.SIGINT)
        told = run.stderr.read()
        stopped = last_line(run.stdout.read())
        assert run.wait(TIMEOUT_S) == 130, told
    assert stopped["interrupted"] is True
    assert 0 < stopped["complete"] < 1_200
    assert stopped["complete"] == sum(one["end"] - one["start"] - one["remaining"] for one in stopped["partitions"])
    assert stopped["lag"] == sum(one["end"] - (one["committed"] or 0) for one in stopped["partitions"]) > 0
    assert "SIGINT: finishing what is in flight and committing" in told
    assert "the next run with --keep kept goes on there" in told

    done = demo(place, "--keep", "kept")
    report = last_line(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["processed"] == 1_200 - stopped["complete"], "what was complete and committed must not run again"
    assert [report[key] for key in ("records", "lost", "duplicated", "out_of_order", "lag")] == [1_200, 0, 0, 0, 0]

    again = last_line(demo(place, "--keep", "kept", "--records", "1300").stdout)
    assert [again[key] for key in ("processed", "records", "lost", "duplicated", "lag")] == [100, 1_300, 0, 0, 0]


@pytest.mark.full
def test_a_broker_that_is_killed_comes_back_and_the_run_finishes_by_itself(place: Path) -> None:
    arguments = ["--keep", "kept", "--records", "1000", "--latency-ms", "250", "--max-concurrency", "100"]
    with Started(
        [*DEMO, *arguments],
        cwd=place,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stderr is not None
        assert run.stdout is not None
        told = ""
        for line in run.stderr:
            told += line
            if line.startswith("Enriching") and " of 1,000" in line:
                break
        os.kill(broker_of(place), signal.SIGKILL)
        told += run.stderr.read()
        report = last_line(run.stdout.read())
        assert run.wait(TIMEOUT_S) == 0, told
    assert report["broker_restarts"] == 1
    judged = ("records", "lost", "out_of_order", "altered", "foreign", "lag")
    assert [report[key] for key in judged] == [1_000, 0, 0, 0, 0, 0]
    assert "the broker had ended; it is up again on its data" in told


def broker_of(place: Path) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        words = (process / "cmdline").read_bytes().split(b"\0")
        if b"keylane.broker" in words and str(place / "kept" / "broker").encode() in words:
            return int(process.name)
    raise AssertionError("no broker runs")


@pytest.mark.full
def test_on_a_broker_of_somebody_else_it_leaves_nothing_and_takes_nothing(place: Path) -> None:
    with BrokerProcess(place / "data", log=place / "broker.log") as broker:
        admin = Admin({"bootstrap.servers": broker.bootstrap})
        chosen = ["--records", "300", "--ordering", "partition", "--latency-ms", "10"]
        done = demo(place, "--bootstrap", broker.bootstrap, *chosen)
        assert done.returncode == 0, done.stderr
        report = last_line(done.stdout)
        judged = ("ordering", "records", "lost", "duplicated", "out_of_order", "altered", "foreign", "lag")
        assert [report[key] for key in judged] == ["partition", 300, 0, 0, 0, 0, 0, 0]
        assert report["peak_in_flight"] >= 5
        assert {"flights", "flights.enriched"} & set(admin.topics()) == set()

        admin.create_topics({"flights": 8})
        with filling(broker.bootstrap) as producer:
            producer.produce(Output("flights", value=b"somebody else's"))
        refused = demo(place, "--bootstrap", broker.bootstrap, "--records", "200")
        assert refused.returncode == 1
        assert "holds 1 records that this run did not make: delete it" in refused.stderr
        places = [("flights", number) for number in range(8)]
        assert sum(end or 0 for end in admin.log_ends(places, read_committed=False).values()) == 1


@pytest.mark.full
@pytest.mark.parametrize("runs", ["process", "lanes"])
def test_the_page_shows_the_run_and_stays_until_ctrl_c(place: Path, runs: str) -> None:
    """Eight at once, 50 ms each: the page is there for seconds before the run's end."""
    slow = ["--records", "1500", "--ordering", "partition"]
    command = [*(one for one in DEMO if runs == "process" or one != "--no-spark"), *slow, "--ui"]
    with Started(
        command, cwd=place, env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://127.0.0.1:\d+/#\S+", line)))
        page, _, token = url.partition("?token=")
        group = page.rpartition("/")[2]
        client = PageClient(page, token)
        with client.watching(group) as watching:
            shown = watching.until(lambda view: len(view.get("members", ())) == 1, "its member reports")
            assert shown["head"]["reports"]
            assert {one["topic"] for one in shown["partitions"].values()} <= {"flights"}
            (member,) = shown["members"].values()
            assert (member["runs"], member["obeys"]) == (runs, True)
            if runs == "lanes":
                told = watching.until(lambda view: any(one["lanes"] for one in view["members"].values()), "lanes")
                (driver,) = told["members"].values()
                assert [one["lane"] for one in driver["lanes"]] == list(range(len(driver["lanes"])))
                assert driver["spark_ui"].startswith("http://")
            watching.until(lambda view: len(view["partitions"]) == 8, "each has its partition")
            watching.until(lambda view: view["head"]["remaining"] == 0, "the flights are done")
            assert any("The page stays until Ctrl-C" in line for line in process.stderr)
            assert client.post("/api/unlock", {}).status == 200
            process.send_signal(signal.SIGINT)
        report = last_line(process.stdout.read())
        assert process.wait(TIMEOUT_S) == 0
    assert [report[key] for key in ("records", "lost", "lag")] == [1_500, 0, 0]


def test_a_service_or_broker_that_cannot_start_is_one_line_and_nothing_is_left(place: Path) -> None:
    (place / "sitecustomize.py").write_text(
        "import sys\nif any('demo.service' in word for word in sys.orig_argv):\n    sys.exit('no service today')\n"
    )
    done = subprocess.run(
        [*DEMO, "--records", "10"],
        cwd=place,
        env=environment(place) | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("keylane: error: the weather service did not start: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--ordering", "keys"], 2, "--ordering keys: give one of key, partition, unordered"),
        (["--records", "many"], 2, "argument --records: 'many': give a number or `all`"),
        (["--master", "lokal[4]"], 2, "argument --master: 'lokal[4]': give local[N]"),
        (["--conf", "spark.ui.enabled"], 2, "argument --conf: 'spark.ui.enabled': give NAME=VALUE"),
        (["--no-such-option"], 2, "unrecognized arguments: --no-such-option"),
        (["--keep", "full"], 1, "--keep full: not a folder of this demo (no keylane-demo.json)"),
        (["--bootstrap", "127.0.0.1:1"], 1, "no Kafka broker answered at '127.0.0.1:1' within 5 s"),
    ],
)
def test_what_cannot_work_is_one_line_that_says_what_to_do(
    place: Path, arguments: list[str], code: int, said: str
) -> None:
    (place / "full").mkdir()
    (place / "full" / "thesis.tex").write_text("x")
    done = demo(place, *arguments)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == code
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
