"""The examples of DataFrames run, one after another in this process's session, on a broker that has the orders."""

from __future__ import annotations

import http.server
import runpy
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peers.postgres import PostgresServer, find_postgres

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS, CUSTOMERS = 1_200, 40


@pytest.fixture(scope="module")
def servers(broker: BrokerProcess) -> str:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics(
        {"orders": 2, "orders.dead": 1, "stage.chosen": 2, "stage.priced": 2}
    )
    with filling(broker.bootstrap) as producer:
        for number in range(ORDERS):
            key = f"customer-{number % CUSTOMERS}".encode()
            producer.produce(kl.Output("orders", key, f"order {number}".encode()))
    return broker.bootstrap


@pytest.fixture
def run(
    spark: SparkSession,
    servers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs an example in a folder of its own, with addresses replaced; what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, addresses: dict[str, str] | None = None) -> str:
        text = (EXAMPLES / name).read_text()
        for old, new in ({"127.0.0.1:9092": servers} | (addresses or {})).items():
            text = text.replace(old, new)
        Path(name).write_text(text)
        capsys.readouterr()
        runpy.run_path(name, run_name="__main__")
        return capsys.readouterr().out

    return run


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.path[1:].upper().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.soak
def test_orders_are_enriched_into_delta_and_parquet(run: Callable[..., str], service: str) -> None:
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    said = f"{ORDERS} rows in Delta\n{ORDERS} rows in Parquet\n"
    assert run("dataframe_to_delta.py", {"127.0.0.1:8080": service}) == said
    commits = Path("enriched/checkpoint/commits")
    (commits / "0").unlink()
    (commits / ".0.crc").unlink(missing_ok=True)
    assert run("dataframe_to_delta.py", {"127.0.0.1:8080": service}) == said, "a replayed batch"


@pytest.mark.soak
def test_orders_stay_in_order_into_a_sink_with_state(run: Callable[..., str]) -> None:
    assert run("dataframe_in_order.py") == f"{CUSTOMERS} {ORDERS} customers and orders\n"


@pytest.mark.soak
def test_a_stream_feeds_lanes_and_lanes_a_stream(run: Callable[..., str]) -> None:
    large = [len(f"order {number}") for number in range(ORDERS) if len(f"order {number}") >= 8]
    assert run("dataframe_and_lanes.py") == f"{len(large)} prices, {sum(large)} in all\n"


@pytest.mark.soak
def test_orders_are_enriched_by_http_calls(run: Callable[..., str], service: str) -> None:
    dead = ORDERS // CUSTOMERS
    assert run("dataframe_calls.py", {"127.0.0.1:8080": service}) == (
        f"{ORDERS - dead} orders enriched\n{ORDERS - dead} processed, {dead} dead, {dead} failed attempts\n"
    )


@pytest.mark.soak
def test_orders_are_exactly_once_in_postgres(run: Callable[..., str]) -> None:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    with PostgresServer() as server:
        addresses = {"postgresql://postgres@127.0.0.1:5432/postgres": server.conninfo}
        said = f"{ORDERS} {CUSTOMERS} rows and customers\n"
        assert run("dataframe_to_postgres.py", addresses) == said
        shutil.rmtree("into-postgres/commits")
        assert run("dataframe_to_postgres.py", addresses) == said, "a replayed batch"


@pytest.mark.soak
def test_orders_are_booked_once_and_handed_on(run: Callable[..., str]) -> None:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    with PostgresServer() as server:
        addresses = {"postgresql://postgres@127.0.0.1:5432/postgres": server.conninfo}
        said = f"{ORDERS} booked, {ORDERS} counted, {ORDERS} handed on\n"
        assert run("dataframe_exactly_once.py", addresses) == said
        shutil.rmtree("booking/commits")
        assert run("dataframe_exactly_once.py", addresses) == said, "a replayed batch"


@pytest.mark.soak
def test_a_group_moves_to_spark_and_back(run: Callable[..., str]) -> None:
    """Last: it adds orders."""
    assert run("group_to_spark_and_back.py") == f"{ORDERS + 100} orders, 0 of them twice\n"


@pytest.mark.full
def test_a_query_with_foreach_batch_goes_on_as_lanes(run: Callable[..., str], servers: str) -> None:
    """It adds orders, too."""
    Admin({"bootstrap.servers": servers}).create_topics({"orders.scored": 1})
    orders = sum(map(len, read_to_end(servers, "orders")))
    assert run("from_foreach_batch.py") == f"{orders} orders in batches\n100 orders on lanes\n"
    scored = sorted(one.value or b"" for batch in read_to_end(servers, "orders.scored") for one in batch)
    assert scored == sorted(b"LATER ORDER %d" % number for number in range(100))
