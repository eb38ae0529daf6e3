"""How a pipeline travels: user modules as code, installed ones by name, and what cannot travel is named."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.flow.workers import cargo
from keylane.spark.lanes import parallel_consumer
from keylane.spark.shipping import lane_body, pack

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {"bootstrap.servers": "b", "group.id": "g"}

READ = """
import pickle, sys
pipeline, make = pickle.loads(sys.stdin.buffer.read())
sys.stdout.write(f"{pipeline.handler(None)} {make.__module__} {'users_app' in sys.modules}")
"""


def elsewhere(data: bytes, program: str = READ) -> str:
    """What another process makes of it, one that does not have the test's modules."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, input=data, capture_output=True, check=True, cwd="/").stdout.decode()


def test_a_users_module_and_its_neighbour_travel_as_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_words.py").write_text("GREETING = 'hello'\ndef greet(name):\n    return f'{GREETING} {name}'\n")
    (tmp_path / "users_app.py").write_text(
        "from users_words import greet\ndef handle(record):\n    return greet('you')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import users_app  # type: ignore[import-not-found]

    pipeline = kl.Pipeline(kafka=SETTINGS, topics=["t"], handler=users_app.handle)
    assert elsewhere(pack(pipeline, parallel_consumer)) == "hello you keylane.spark.lanes False"
    assert pickle.loads(pickle.dumps(users_app.handle)) is users_app.handle, "by name again once it is packed"


def test_a_local_function_travels() -> None:
    answer = "closed over"

    def handle(record: kl.Record) -> str:
        return answer

    pipeline = kl.Pipeline(kafka=SETTINGS, topics=["t"], handler=handle)
    assert elsewhere(pack(pipeline, parallel_consumer)).startswith("closed over ")


class Turn:
    """While this is pickled it is told, and another one is waited for: in vain where that waits for this one."""

    def __init__(self, begun: threading.Event, other: threading.Event) -> None:
        self._begun, self._other = begun, other

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        self._begun.set()
        self._other.wait(0.3)
        return int, ()


def test_queries_that_start_at_once_do_not_spoil_each_others_cargo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one is packed, the modules of the other one travel as code all the same."""
    (tmp_path / "users_other_app.py").write_text("def handle(record):\n    return 'hello'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import users_other_app  # type: ignore[import-not-found]

    first_begun, second_begun, first_ended = (threading.Event() for _ in range(3))

    def pack_first() -> None:
        cargo.pack((Turn(first_begun, second_begun), users_other_app.handle), "a lane")
        first_ended.set()

    thread = threading.Thread(target=pack_first)
    thread.start()
    first_begun.wait()
    data = cargo.pack((Turn(second_begun, first_ended), users_other_app.handle), "another lane")
    thread.join()
    assert elsewhere(data, "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())[1](None))") == "hello\n"


def test_what_cannot_travel_is_named_with_the_way_out() -> None:
    lock = threading.Lock()

    def handle(record: kl.Record) -> None:
        with lock:
            pass

    pipeline = kl.Pipeline(kafka=SETTINGS, topics=["t"], handler=handle)
    with pytest.raises(kl.UsageError, match=r"cannot travel.*'_thread.lock'.*resource"):
        pack(pipeline, parallel_consumer)


def test_another_version_is_told_before_anything_is_unpickled() -> None:
    assert lane_body(b"no pickle", "0.0.0")(iter([0])) == ["version", kl.__version__]


def test_a_missing_keylane_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    body = lane_body(b"no pickle", kl.__version__)
    monkeypatch.setitem(sys.modules, "keylane.version", None)
    kind, text = body(iter([0]))
    assert kind == "missing"
    assert "keylane" in text


def test_the_input_is_drained() -> None:
    rows = iter([1, 2, 3])
    lane_body(b"no pickle", "0.0.0")(rows)
    assert next(rows, None) is None


class OthersImport(dict[str, Any]):
    """Modules, of which one comes while somebody goes through them."""

    def items(self) -> Any:
        for one in super().items():
            yield one
            self["a_module_that_comes"] = None


def test_modules_may_come_while_a_pipeline_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`list(sys.modules.items())` failed in one of some thousand starts from several threads."""
    monkeypatch.setattr(cargo, "sys", SimpleNamespace(modules=OthersImport(sys.modules)))
    assert pickle.loads(cargo.pack(len, "nowhere")) is len
