"""Pipelines inside a FastAPI application: they start with it, drain at its end, and its probes tell of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import peers
import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.stage import Stage, until

for needed in ("fastapi", "uvicorn"):
    pytest.importorskip(needed, reason=f"the extra fastapi is not installed: {needed}")

from keylane.adapters.fastapi import lifespan  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGUN = "begun"
"""A file that has a character for each handler that began."""
EXAMPLES = Path(__file__).parents[2] / "examples"


class Application:
    """uvicorn with the example, in a process of its own."""

    def __init__(self, folder: Path, servers: str, name: str) -> None:
        for file in ("fastapi_app.py", "orders.py"):
            text = (EXAMPLES / file).read_text().replace("127.0.0.1:9092", servers)
            text = (
                text.replace("await asyncio.sleep(0.05)", f"open({BEGUN!r}, 'a').write('.'); await asyncio.sleep(0.4)")
                .replace('"orders', f'"{name}')
                .replace('"scoring"', f'"{name}"')
            )
            (folder / file).write_text(text)
        (self._port,) = peers.free_ports(1)
        command = [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", str(self._port)]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def end(self) -> str:
        """After SIGTERM; what it logged."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=30)
        return errors

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("fastapi") / "data") as running:
        yield running


def test_it_works_while_the_application_does_and_finishes_what_has_begun(broker: BrokerProcess, tmp_path: Path) -> None:
    name = "drained"
    stage = Stage(broker.bootstrap, name, group=name)
    stage.topic = name
    stage.create(2)
    stage.create(1, f"{name}.scored")
    stage.fill((b"%d" % number, number % 2) for number in range(2_000))
    with Application(tmp_path, broker.bootstrap, name) as application:
        until(lambda: application.ask("/readyz") == (200, "ready\n"), "it is ready")
        assert application.ask("/healthz") == (200, "alive\n")
        until(lambda: int(application.ask("/processed")[1]) > 0, "it works")
        logged = application.end()
    assert "Application shutdown complete" in logged
    done = {source[1:] for source in stage.covered()}
    assert 0 < len(done) < 2_000, "it ended in the middle"
    assert (tmp_path / BEGUN).stat().st_size == len(done), "what had begun was finished, and is committed"
    assert len(stage.read(f"{name}.scored")) == len(done), "none is lost or runs again"


def test_a_pipeline_that_fails_is_told_by_the_probes_and_at_the_end(broker: BrokerProcess, tmp_path: Path) -> None:
    name = "failing"
    with Application(tmp_path, broker.bootstrap, name) as application:  # its topic does not exist
        until(lambda: application.ask("/healthz")[0] == 503, "it is told")
        status, text = application.ask("/readyz")
        logged = application.end()
    assert status == 503
    assert "'failing'" in text
    assert "a pipeline of the application has ended: it failed: " in logged
    assert "Application shutdown failed" in logged


def test_a_lifespan_without_a_pipeline_is_refused() -> None:
    with pytest.raises(kl.UsageError, match=r"lifespan\(\): give a pipeline"):
        lifespan()
