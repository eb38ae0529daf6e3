"""What README and docs/lanes.md show runs in a session that is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.records import Output
from kit.filling import filling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess

RECORDS = 2_000
LANES_PAGE = Path(__file__).parents[2] / "docs" / "lanes.md"


def test_the_readmes_program_runs_in_a_session_that_is_there(
    spark: SparkSession, examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark.sparkContext.master == "local[4]", "the program would start another session"
    monkeypatch.syspath_prepend(examples)
    text = (examples / "in_my_spark_session.py").read_text()
    assert text.endswith("\nspark.stop()\n")
    program = compile(text.removesuffix("spark.stop()\n"), "in_my_spark_session.py", "exec")
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out == f"{RECORDS} records processed\n"


@pytest.mark.soak
def test_the_first_program_of_the_page_about_lanes_runs(spark: SparkSession, broker: BrokerProcess) -> None:
    assert spark.sparkContext.master == "local[4]", "the program would start another session"
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"flights": 4, "flights.enriched": 4})
    with filling(broker.bootstrap) as producer:
        for number in range(100):
            producer.produce(Output("flights", key=b"%d" % (number % 7), value=b"flight %d" % number))
    shown = re.search(r"^```python\n(.*?)^```$", LANES_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert "broker:9092" in shown[1]
    exec(compile(shown[1].replace("broker:9092", broker.bootstrap), "lanes.md", "exec"), {"__name__": "__main__"})
    values = sorted(one.value or b"" for batch in read_to_end(broker.bootstrap, "flights.enriched") for one in batch)
    assert values == sorted(b"FLIGHT %d" % number for number in range(100))
