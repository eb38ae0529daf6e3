"""Plain lines where there is no terminal, bars where there is one; both show life from the first second."""

import io

import pytest
from rich.console import Console

from keylane.cli.progress import BarProgress, PlainProgress, progress_on


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("keylane.cli.progress.monotonic", lambda: now[0])
    return now


def test_plain_lines_begin_at_once_and_come_at_most_once_a_second(clock: list[float]) -> None:
    stream = io.StringIO()
    with PlainProgress(stream).step("Producing", total=2_000) as step:
        assert stream.getvalue() == "Producing …\n"
        step.update(10)
        clock[0] += 1.5
        step.update(1_200, "800/s")
        clock[0] += 0.9
        step.update(1_900)
        clock[0] += 1.1
        step.end_note("8 partitions")
    assert stream.getvalue().splitlines() == [
        "Producing …",
        "Producing: 1,200 of 2,000, 800/s",
        "Producing: 3.5 s, 8 partitions",
    ]


def test_a_step_without_a_total_shows_what_it_knows(clock: list[float]) -> None:
    stream = io.StringIO()
    with PlainProgress(stream).step("Starting") as step:
        clock[0] += 1
        step.update(0, "waiting for Java")
        clock[0] += 1
        step.update(3)
    assert stream.getvalue().splitlines()[1:3] == ["Starting: waiting for Java", "Starting: 3"]


def test_a_step_that_fails_does_not_claim_to_have_ended() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), PlainProgress(stream).step("Starting"):
        raise ZeroDivisionError
    assert stream.getvalue() == "Starting …\n"


def test_bars_leave_a_line_for_each_finished_step_and_take_no_text_for_markup() -> None:
    stream = io.StringIO()
    bars = BarProgress(Console(file=stream, force_terminal=True, width=100, color_system=None))
    bars.say("[not markup]")
    with bars.step("Producing [bold]", total=10) as step:
        step.update(10, "[dim]done")
        step.end_note("10 [records]")
    text = stream.getvalue()
    assert "[not markup]\n" in text
    last = text.splitlines()[-1]
    assert "✓ Producing [bold] " in last
    assert last.rstrip().endswith("s, 10 [records]")


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(progress_on(io.StringIO()), PlainProgress)


def test_between_rare_lines_there_is_one_for_news(clock: list[float]) -> None:
    stream = io.StringIO()
    with PlainProgress(stream, 60).step("Running") as step:
        for done in range(59):
            clock[0] += 1
            step.update(done)
        assert stream.getvalue() == "Running …\n"
        step.update(59, "1 failed attempt", is_news=True)
        clock[0] += 60
        step.update(90)
    assert stream.getvalue().splitlines()[1:3] == ["Running: 59, 1 failed attempt", "Running: 90"]
