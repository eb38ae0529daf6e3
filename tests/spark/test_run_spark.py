"""The README's program in a session that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

RECORDS = 2_000


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
