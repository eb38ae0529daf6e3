"""`keylane run FILE` in one process: to the end, until Ctrl-C, and every way in which it can go wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.records import Output
from kit.filling import filling
from kit.processes import Started, Stopwatch
from kit.stage import until

RUN = [sys.executable, "-m", "keylane", "run"]
TIMEOUT_S = 60
MANIFESTS = Path(__file__).parents[2] / "examples" / "kubernetes" / "pipeline" / "pipeline.yaml"
_, DEPLOYMENT = yaml.safe_load_all(MANIFESTS.read_text())
IN_A_POD = [word.replace("=9100", "=0") for word in DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["args"][2:]]
"""What a pod's command says behind the file, with a free port."""
RECORDS = 400

PIPELINE = """
import asyncio
import keylane as kl

async def handle(record, context):
    {body}

pipeline = kl.Pipeline(
    kafka={{"bootstrap.servers": "{servers}", "group.id": "{group}"}},
    topics=["{topic}"], handler=handle, max_concurrency=50, offset_reset="earliest",
    retries=kl.Retries(max_attempts=2, delay_ms=1), {more}
)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as made:
        Admin({"bootstrap.servers": made.bootstrap}).create_topics({"orders": 4, "orders.done": 4})
        with filling(made.bootstrap) as producer:
            for number in range(RECORDS):
                producer.produce(Output("orders", b"%d" % (number % 40), b"order %d" % number))
        yield made


@pytest.fixture
def write(broker: BrokerProcess, tmp_path: Path) -> Any:
    """Writes a file with a pipeline on the module's broker, in a group named after the test's folder."""

    def write(body: str, *, more: str = "", topic: str = "orders", servers: str = "") -> Path:
        text = PIPELINE.format(
            body=body, servers=servers or broker.bootstrap, group=tmp_path.name, topic=topic, more=more
        )
        (tmp_path / "mine.py").write_text(text)
        return tmp_path / "mine.py"

    return write


def run(path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*RUN, path.name, *arguments], cwd=path.parent, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_available_now_ends_at_lag_0_and_a_second_run_has_nothing_to_do(write: Any, broker: BrokerProcess) -> None:
    path = write('return kl.Output("orders.done", record.key, record.value.upper())')
    first, second = run(path, "--available-now"), run(path, "--available-now")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert f"done: {RECORDS} records processed in " in first.stdout
    assert first.stdout.rstrip().endswith("lag 0")
    assert "done: 0 records processed in " in second.stdout
    values = [record.value for batch in read_to_end(broker.bootstrap, "orders.done") for record in batch]
    assert sorted(values) == sorted(b"ORDER %d" % number for number in range(RECORDS))  # type: ignore[type-var]


def test_json_has_progress_and_a_summary_that_the_broker_confirms(write: Any, broker: BrokerProcess) -> None:
    path = write("await asyncio.sleep(0.2)")
    done = run(path, "--available-now", "--json", "--progress-interval", "0.5")
    assert done.returncode == 0, done.stderr
    *progress, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert progress
    assert {one["event"] for one in progress} == {"progress"}
    assert (summary["event"], summary["processed"], summary["lag"], summary["stopped"]) == (
        "summary",
        RECORDS,
        0,
        False,
    )
    committed = Admin({"bootstrap.servers": broker.bootstrap}).committed_offsets(path.parent.name)
    assert {(one["topic"], one["partition"]): one["committed"] for one in summary["partitions"]} == {
        place: found.offset for place, found in committed.items()
    }
    assert sum(one["committed"] for one in summary["partitions"]) == RECORDS


def test_metrics_are_served_while_it_runs(write: Any, broker: BrokerProcess) -> None:
    path = write("await asyncio.sleep(0.001)")
    with Started(
        [*RUN, path.name, "--metrics-port", "0"], cwd=path.parent, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        [url] = re.findall(
            r"^[-0-9]+ [:0-9]+ metrics at (http://127\.0\.0\.1:\d+/metrics)$", running.stdout.readline(), re.MULTILINE
        )
        label = f'{{group="{path.parent.name}"}}'
        until(lambda: f"keylane_processed_total{label} {RECORDS}.0\n" in scrape(url), "all are through and counted")
        page = scrape(url)
        running.send_signal(signal.SIGINT)
        assert running.wait(TIMEOUT_S) == 0
    assert f'keylane_handler_seconds_bucket{{group="{path.parent.name}",le="+Inf"}} {RECORDS}.0' in page
    assert f"keylane_ready{label} 1.0\n" in page


def scrape(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: bytes = answer.read()
    return text.decode()


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 0), (["--available-now"], 130), pytest.param(IN_A_POD, 0, id="in a pod")]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_commits_and_says_where(
    write: Any, arguments: list[str], code: int, number: signal.Signals
) -> None:
    path = write("await asyncio.sleep(0.5)")
    with Started(
        [*RUN, path.name, "--json", "--progress-interval", "0.5", *arguments],
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            if json.loads(line)["processed"] > 0:
                break
        os.killpg(running.pid, number)
        summary = json.loads(running.stdout.read().splitlines()[-1])
        told = running.stderr.read()
        assert running.wait(TIMEOUT_S) == code, told
    assert f"keylane: {number.name}: finishing what is in flight" in told
    assert "stopped: " in told
    assert summary["stopped"] is True
    assert 0 < summary["processed"] < RECORDS
    complete = sum(one["end"] - one["start"] - one["remaining"] for one in summary["partitions"])
    assert complete == summary["processed"], "everything that ran is committed"


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "code", "error"),
    [
        ("", 0, None),
        ("commit=kl.Commit(interval_ms=600_000)", 1, "no broker acknowledged the last commit within 10 s: what was"),
    ],
    ids=["committed", "not committed"],
)
@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "gone"])
def test_stopping_without_brokers_ends_in_time_and_says_what_is_committed(
    write: Any, tmp_path: Path, more: str, code: int, error: str | None, *, is_frozen: bool
) -> None:
    with BrokerProcess(tmp_path / "own") as own:
        admin = Admin({"bootstrap.servers": own.bootstrap})
        admin.create_topics({"orders": 1})
        with filling(own.bootstrap) as producer:
            for number in range(10):
                producer.produce(Output("orders", b"%d" % number, b"order"))
            if more:
                producer.produce(Output("orders", b"last", b"60"))  # what runs keeps the others from a prompt commit
        path = write(
            'await asyncio.sleep(float(record.value.decode().replace("order", "0")))',
            servers=own.bootstrap,
            more=f"drain_timeout_ms=1_000, {more}",
        )
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*RUN, path.name, "--json", "--progress-interval", "0.2"]
        with Started(command, cwd=path.parent, text=True, **pipes) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            for line in running.stdout:
                if json.loads(line)["processed"] == 10:
                    break
            if not more:
                first = ("orders", 0)
                until(lambda: admin.committed_offsets(tmp_path.name)[first].offset == 10, "all is committed")
            own.pause() if is_frozen else own.kill()
            watch = Stopwatch()
            running.send_signal(signal.SIGTERM)
            summary = json.loads(running.stdout.read().splitlines()[-1])
            told = running.stderr.read()
            assert running.wait(TIMEOUT_S) == code, told
            assert watch.took_s() < 1 + 30, "what the guide says, beyond drain_timeout_ms"
        if is_frozen:
            own.resume()
    assert (summary["processed"], summary["lag"], summary["partitions"]) == (10, None, None)
    assert "where the group stands is not known, as no broker answers" in told
    errors = [line for line in told.splitlines() if line.startswith("keylane: error: ")]
    assert len(errors) == code
    assert error is None or error in errors[0]


def test_a_handler_that_raises_stops_with_its_line_and_the_record(write: Any) -> None:
    done = run(write("raise ValueError('no good')"))
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert re.match(
        r"[-0-9]+ [:,0-9]+ WARNING keylane.failures: ValueError in handle \(mine.py:6\): the first one, at", first
    )
    assert last.startswith("keylane: error: mine.py:6: orders-")
    assert "ValueError: no good; failed 2 attempts" in last


def test_a_resource_that_raises_stops_with_its_line(write: Any) -> None:
    done = run(write("...", more="resource=lambda: 1 / 0"))
    assert done.returncode == 1
    assert done.stderr.startswith("keylane: error: mine.py:11: the pipeline's resource could not be made: ")


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "said"),
    [
        ([], {"topic": "nowhere"}, 2, "topic 'nowhere' does not exist"),
        ([], {"more": "ordering='keys'"}, 2, "mine.py:8: ordering='keys': give one of 'key', 'partition', 'unordered'"),
        (["--lanes", "2"], {}, 2, "--lanes goes with --spark MASTER"),
        (["--spark", "local[2]", "--lanes", "2"], {}, 2, "--spark local[2]: 2 lanes and a free task slot take 3"),
        (["--spark", "locally"], {}, 2, "argument --spark: 'locally': give local[N]"),
    ],
)
def test_what_cannot_work_is_one_line_that_says_what_to_do(
    write: Any, arguments: list[str], changes: dict[str, str], code: int, said: str
) -> None:
    done = run(write("...", **changes), *arguments)
    errors = [line for line in done.stderr.splitlines() if line.startswith("keylane: error: ")]
    assert done.returncode == code
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["psycopg", "psycopg_pool"])
def test_a_store_whose_package_is_missing_is_wrong_usage(write: Any, missing: str) -> None:
    path = write("pass", more='delivery=kl.ExactlyOnce("postgresql://me:MARKER@127.0.0.1:1/orders")')
    path.write_text(f"import sys\nsys.modules[{missing!r}] = None\n" + path.read_text())
    done = run(path, "--available-now")
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("keylane: error: PostgresStore needs psycopg (")
    assert line.endswith("pip install 'keylane[postgres]'")
    assert "MARKER" not in done.stdout + done.stderr


@pytest.mark.parametrize("output", ["full", "closed", "no reader", "ASCII"])
def test_an_output_that_takes_nothing_does_not_stop_the_work(write: Any, broker: BrokerProcess, output: str) -> None:
    path = write("await asyncio.sleep(0.1)")
    command = [*RUN, path.name, "--available-now", "--progress-interval", "0.1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"} if output == "ASCII" else None
    close = (lambda: os.close(1)) if output == "closed" else None
    reader, writer = os.pipe()
    if output == "no reader":
        os.close(reader)
    try:
        with Path("/dev/full").open("wb") as full:
            to: Any = {"full": full, "no reader": writer}.get(output, subprocess.DEVNULL)
            done = subprocess.run(
                command,
                cwd=path.parent,
                stdout=to,
                stderr=subprocess.PIPE,
                env=environment,
                preexec_fn=close,
                check=False,
            )
    finally:
        os.close(writer)
        if output != "no reader":
            os.close(reader)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"nothing more is written to standard output, the work goes on") == (
        output in {"full", "no reader"}
    )
    committed = Admin({"bootstrap.servers": broker.bootstrap}).committed_offsets(path.parent.name)
    assert sum(one.offset for one in committed.values()) == RECORDS


def test_a_command_whose_answer_cannot_be_written_fails_in_one_line(broker: BrokerProcess) -> None:
    command = [*RUN[:-1], "topics", "list", "--bootstrap-server", broker.bootstrap]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"keylane: error: standard output: No space left on device\n")


LOGGING = """
import logging, sys
class Kept(logging.Handler):
    def emit(self, record):
        with open("kept", "a") as file:
            file.write(f"{record.levelname} {record.name} {record.exc_info is not None}\\n")
logging.basicConfig(handlers=[Kept()], level=logging.INFO)
"""


@pytest.mark.parametrize("rule", ["kl.Halt()", "kl.Skip()"])
def test_the_applications_own_logging_gets_keylanes_lines(write: Any, rule: str) -> None:
    path = write("raise ValueError('no good')", more=f"on_exhausted={rule}")
    path.write_text(LOGGING + path.read_text())
    done = run(path, "--available-now")
    kept = (path.parent / "kept").read_text().splitlines()
    assert "WARNING keylane.failures False" in kept
    is_halted = rule == "kl.Halt()"
    assert kept.count("ERROR keylane.failures True") == is_halted, "the end of a run, with its exception"
    assert done.returncode == is_halted
    assert done.stderr.count("Traceback") == 0, "the command's own last line says it"


CONFIGURED = """
import logging.config
logging.config.dictConfig({
    "version": 1,
    "handlers": {"kept": {"class": "logging.FileHandler", "filename": "kept"}},
    "root": {"handlers": ["kept"]},
})
"""


def test_logging_that_disables_the_loggers_that_there_are_gets_keylanes_lines(write: Any) -> None:
    """The default of `logging.config`, which Django keeps."""
    path = write("raise ValueError('no good')", more="on_exhausted=kl.Skip()")
    path.write_text(CONFIGURED + path.read_text())
    done = run(path, "--available-now")
    assert done.returncode == 0, done.stderr
    assert "ValueError" in (path.parent / "kept").read_text()
    assert "ValueError" in done.stderr, "nothing of the file's writes to the terminal"
