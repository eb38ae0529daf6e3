"""The weather service answers after its latency, counts what it holds, and goes when its parent goes."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import aiohttp
import pytest

from keylane.demo.service_process import ServiceProcess
from keylane.errors import PeerError


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(latency_ms=200) as process:
        yield process


async def ask(url: str, queries: list[dict[str, str]]) -> list[tuple[int, object]]:
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(query: dict[str, str]) -> tuple[int, object]:
            async with session.get("/weather", params=query) as answer:
                return answer.status, await answer.json()

        return list(await asyncio.gather(*map(one, queries)))


def test_it_answers_the_tables_row_and_404_without_one(service: ServiceProcess) -> None:
    known, unknown, bare = asyncio.run(
        ask(
            service.url,
            [{"origin": "EWR", "hour": "2013-01-01T10:00:00Z"}, {"origin": "XXX", "hour": "never"}, {}],
        )
    )
    assert known[0] == 200
    assert known[1]["temp"] == 39.02  # type: ignore[index]
    assert unknown == (404, {"error": "no weather for 'XXX' at 'never'"})
    assert bare[0] == 404


def test_it_holds_many_at_once_and_says_so(service: ServiceProcess) -> None:
    before = service.stats()
    started = time.monotonic()
    asyncio.run(ask(service.url, [{"origin": "EWR", "hour": "2013-01-01T10:00:00Z"}] * 150))
    elapsed = time.monotonic() - started
    after = service.stats()
    assert elapsed >= 0.2
    assert after.peak_in_flight >= 100
    assert (after.in_flight, after.total - before.total) == (0, 150)
    assert after.recent_peak == after.peak_in_flight
    assert service.stats().recent_peak == 0


def test_a_request_that_its_client_gave_up_is_no_longer_counted(service: ServiceProcess) -> None:
    async def give_up() -> None:
        async with aiohttp.ClientSession(service.url) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), session.get("/weather"):
                    pass

    asyncio.run(give_up())
    deadline = time.monotonic() + 5
    while service.stats().in_flight:
        assert time.monotonic() < deadline


def test_stop_ends_the_process_and_stats_then_say_who_is_gone() -> None:
    process = ServiceProcess(latency_ms=1)
    process.stop()
    process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    with pytest.raises(PeerError, match="does not answer"):
        process.stats()


def test_a_service_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(PeerError, match="did not start: it ended with code 1"):
        ServiceProcess()


def test_it_ends_when_its_parent_is_killed() -> None:
    program = (
        "import json, sys, time; from keylane.demo.service_process import ServiceProcess; "
        "s = ServiceProcess(1); print(json.dumps([s.pid, s.address]), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid, address = json.loads(parent.stdout.readline())
    assert os.getsid(pid) == pid, "not in a session of its own"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    async def until_refused() -> None:
        async with aiohttp.ClientSession(f"http://{address}") as session, asyncio.timeout(10):
            while True:
                try:
                    async with session.get("/stats"):
                        pass
                except aiohttp.ClientConnectionError:
                    return

    asyncio.run(until_refused())
