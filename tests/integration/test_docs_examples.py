"""What README, start and guide show is what is in examples/, runs, and parses."""

import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from keylane.broker.process import BrokerProcess
from keylane.cli.main import build_parser
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.records import Output
from kit.filling import filling
from kit.processes import Started
from kit.stage import until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "guide.md"
START = ROOT / "docs" / "start.md"
PAGES = [ROOT / "README.md", START, GUIDE, ROOT / "docs" / "operations.md"]
ADDRESS = "127.0.0.1:9092"
"""The broker of every example; the tests put their own in its place."""
SERVICE = "127.0.0.1:8080"
RECORDS = 2_000
TIMEOUT_S = 60


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def example_files() -> set[str]:
    return {file.read_text() for file in EXAMPLES.glob("*.py")}


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("keylane ")]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The examples in a folder of their own, talking to a broker of their own that has the orders."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    with BrokerProcess(folder / "data") as broker:
        for file in (folder / "examples").glob("*.py"):
            file.write_text(file.read_text().replace(ADDRESS, broker.bootstrap))
        run(folder, "examples/produce_orders.py")
        yield folder, broker.bootstrap


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_and_start_show_the_files_in_examples() -> None:
    assert [block in example_files() for block in blocks(PAGES[0], "python")] == [True]
    assert [block in example_files() for block in blocks(START, "python")] == [True, True, True, True, False]
    pipeline = (EXAMPLES / "orders.py").read_text()
    assert len([line for line in pipeline.splitlines() if line.strip()]) <= 15, "the first example is a short one"


def test_the_examples_run_in_the_order_of_the_start_page(copies: tuple[Path, str]) -> None:
    folder, servers = copies
    assert run(folder, "examples/in_my_program.py") == f"{RECORDS} records processed\n"
    output = run(folder, "-m", "keylane", "run", "examples/orders.py", "--available-now")
    assert "done: 0 records processed" in output
    scored = [record for batch in read_to_end(servers, "orders.scored") for record in batch]
    assert sorted(record.value or b"" for record in scored) == sorted(b"ORDER %d" % n for n in range(RECORDS))
    groups = run(folder, "-m", "keylane", "groups", "describe", "scoring", "--bootstrap", servers)
    assert "lag 0" in groups


def test_sigterm_ends_a_program_after_what_is_in_flight(copies: tuple[Path, str]) -> None:
    """With topics and a group of its own."""
    folder, servers = copies
    own = folder / "sigterm"
    own.mkdir()
    for name in ("orders", "produce_orders", "until_sigterm", "in_my_program"):
        text = (folder / "examples" / f"{name}.py").read_text()
        (own / f"{name}.py").write_text(text.replace('"orders', '"late').replace('"scoring"', '"late"'))
    run(own, "produce_orders.py")
    admin = Admin({"bootstrap.servers": servers})

    def scored() -> int:
        return admin.log_ends([("late.scored", 0)], read_committed=False)["late.scored", 0] or 0

    (own / "orders.py").write_text((own / "orders.py").read_text().replace("sleep(0.05)", "sleep(0.2)"))
    program = [sys.executable, "until_sigterm.py"]
    with Started(program, cwd=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        until(lambda: scored() > 0, "it works")
        running.terminate()
        output, errors = running.communicate(timeout=TIMEOUT_S)
    assert (running.returncode, errors) == (0, "")
    processed = int(output.removesuffix(" records processed\n"))
    assert 0 < processed == scored() < RECORDS, "what had begun was finished"
    assert run(own, "in_my_program.py") == f"{RECORDS - processed} records processed\n", "and is not run again"


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page in (GUIDE, START) for number in range(len(blocks(page, "python")))]
)
def test_the_code_of_guide_and_start_runs(page: Path, number: int) -> None:
    """What is a file in examples/ runs below."""
    block = blocks(page, "python")[number]
    if block not in example_files():
        exec(compile(block, f"{page.name} block {number}", "exec"), {"__name__": "guide"})


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("note_outputs", "2000 outputs in 1 partitions"),
        ("read_results", "18890 bytes in all"),
        ("traced", "\n".join(["process orders"] * RECORDS)),
    ],
)
def test_the_guides_programs_say_what_they_did(copies: tuple[Path, str], example: str, says: str) -> None:
    folder, _ = copies
    assert run(folder, f"examples/{example}.py") == f"{says}\n"


def test_the_transactional_example_runs_and_is_on_the_page(copies: tuple[Path, str]) -> None:
    folder, servers = copies
    assert (EXAMPLES / "transactional.py").read_text() in blocks(ROOT / "docs" / "delivery.md", "python")
    Admin({"bootstrap.servers": servers}).create_topics({"orders.priced": 2, "orders.dead": 1})
    assert run(folder, "examples/transactional.py") == f"{RECORDS} prices, 0 transactions aborted\n"
    assert run(folder, "examples/transactional.py") == "0 prices, 0 transactions aborted\n"


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("at_most_once", f"{RECORDS} notices, 0 given up"),
        ("at_least_once", f"{RECORDS} orders, True"),
        ("almost_once", f"{RECORDS} labels, none twice: True"),
        ("exactly_once", f"{RECORDS} bookings"),
    ],
)
def test_each_guarantee_has_a_program_that_runs(copies: tuple[Path, str], example: str, says: str) -> None:
    folder, _ = copies
    assert (EXAMPLES / f"{example}.py").read_text() in blocks(ROOT / "docs" / "delivery.md", "python")
    assert run(folder, f"examples/{example}.py") == f"{says}\n"


class Weather(BaseHTTPRequestHandler):
    """The service of the example: answers with the hour that it was asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Nothing: this is a test."""


def test_the_guides_http_pipeline_asks_for_each_record(copies: tuple[Path, str]) -> None:
    folder, servers = copies
    Admin({"bootstrap.servers": servers}).create_topics({"flights.enriched": 1, "flights.dead": 1})
    with filling(servers) as producer:
        for hour in range(100):
            producer.produce(Output("flights", b"N%d" % hour, b"%d" % hour))
    with ThreadingHTTPServer(("127.0.0.1", 0), Weather) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        file = folder / "examples" / "ask_weather.py"
        file.write_text(file.read_text().replace(SERVICE, f"127.0.0.1:{service.server_address[1]}"))
        run(folder, "-m", "keylane", "run", "examples/ask_weather.py", "--available-now")
        service.shutdown()
        thread.join()
    enriched = [record for batch in read_to_end(servers, "flights.enriched") for record in batch]
    assert {(one.key, one.value) for one in enriched} == {
        (b"N%d" % hour, b"/weather?hour=%d" % hour) for hour in range(100)
    }


@pytest.mark.parametrize("command", commands())
def test_every_command_that_is_shown_parses(command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    arguments = words[:-1] if words[-1] == "&" else words
    assert callable(build_parser(arguments).parse_args(arguments).func)
