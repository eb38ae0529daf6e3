"""What the command line keeps out of its log."""

from __future__ import annotations

import inspect
import logging

import pytest

from keylane.cli.logs import PY4J_LINE, mute_py4j


def test_a_jvm_that_ends_leaves_no_traceback_of_py4js(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = pytest.importorskip("py4j.java_gateway")
    assert PY4J_LINE in inspect.getsource(gateway)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.NOTSET)
    mute_py4j()
    logging.exception(PY4J_LINE)
    logging.error("another")
    assert [record.getMessage() for record in caplog.records] == ["another"]
