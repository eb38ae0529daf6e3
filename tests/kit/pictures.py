"""`PYTHONPATH=tests python -m kit.pictures FOLDER`: the pictures of docs/ui.md, of members that run; with `--every`
each view at each width in each theme, to be looked at. Takes three minutes, and needs Chromium."""

from __future__ import annotations

import argparse
import random
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.offsets import OffsetMap, encode
from keylane.parallel_consumer import ParallelConsumer
from keylane.testing import EmbeddedBroker
from keylane.ui.page import Page as Served
from kit import browser as chromium
from kit.page_client import PageClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

TOKEN = "a token for the pictures"
GROUP, TOPIC, PARTITIONS = "weather", "flights", 8
DEAD = f"{TOPIC}.dead"
A_SECOND = 250
MOMENTS = 75
"""Points of the charts: two and a half minutes."""
WIDTHS = {"phone": (390, 800), "tablet": (820, 1100), "desk": (1440, 1120)}


class Weather:
    """A service that is slow at times, does not know some flights for a while, and others at all."""

    def __init__(self) -> None:
        self._chosen = random.Random(11)

    def __call__(self, record: kl.Record) -> None:
        number = int((record.key or b"N0")[1:])
        if number % 1_500 == 0 and record.offset > 20:
            raise TimeoutError("the weather service did not answer within 30 s")
        if number % 97 == 0 and self._chosen.random() < 0.6:
            raise ConnectionError("503 from the weather service")
        time.sleep(self._chosen.choices((0.03, 0.2, 6.0), (0.97, 0.028, 0.002))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(topics={TOPIC: PARTITIONS, DEAD: 1, "bookings": 3}))
        kafka = {"bootstrap.servers": broker.bootstrap_servers}
        admin = Admin(kafka)
        bookings = OffsetMap(400, [*range(400, 520, 7)], 640)
        admin.commit_offsets("bookings-jvm", {("bookings", 0): bookings.base}, {("bookings", 0): encode(bookings)})
        producer = Producer(kafka)
        for _ in range(700):
            producer.produce("bookings", b"a booking", partition=0)
        producer.flush(30)
        for number in range(3):
            stack.enter_context(member(kafka, f"weather-{number}"))
        stack.enter_context(feeding(broker.bootstrap_servers))
        served = stack.enter_context(Served(kafka, admin, token=TOKEN))
        browser = stack.enter_context(chromium.browsing())
        client = PageClient(served.url, TOKEN)
        with client.watching(GROUP) as watching:
            watching.until(lambda view: len(view.get("members", {})) == 3, "all report")
            client.act("/api/operate", group=GROUP, do="hold-key", where="key=N1050*", execute=True)
            watching.until(lambda view: len(view["history"]) >= MOMENTS, "there are minutes to show")
            client.act("/api/operate", group=GROUP, do="pause", topics=[f"{TOPIC}:3"], execute=True)
        if options.every:
            every(browser, served, options.folder)
        else:
            pictures(browser, served, options.folder)


@contextmanager
def member(kafka: dict[str, str], name: str) -> Iterator[None]:
    pipeline = kl.Pipeline(
        kafka=kafka | {"group.id": GROUP},
        topics=[TOPIC],
        handler=Weather(),
        workers=kl.Threads(16),
        max_concurrency=16,
        offset_reset="earliest",
        retries=kl.Retries(max_attempts=4, delay_ms=8_000, max_delay_ms=8_000),
        commit=kl.Commit(interval_ms=500),
        on_exhausted=kl.DeadLetter(DEAD),
        operations=kl.Operations(token=TOKEN, report_interval_ms=1_000, show_keys=True),
    )
    with ParallelConsumer(pipeline, client_id=name) as consumer:
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            yield
        finally:
            consumer.stop("now")
            thread.join()


@contextmanager
def feeding(servers: str) -> Iterator[None]:
    ends = threading.Event()

    def feed() -> None:
        chosen = random.Random(7)
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        while not ends.wait(0.1):
            for _ in range(A_SECOND // 10):
                key = 10_897 if chosen.random() < 0.03 else chosen.randrange(10_000, 15_000)
                producer.produce(TOPIC, b"KSFO", b"N%d" % key, key % PARTITIONS)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def pictures(browser: Browser, served: Served, folder: Path) -> None:
    """Those of the docs."""
    with opened(browser, served, f"group/{GROUP}", (1440, 1120), "light") as page:
        page.screenshot(path=folder / "ui-group.png")
    with opened(browser, served, "", (1180, 240), "dark") as page:
        page.screenshot(path=folder / "ui-groups-dark.png")
    with opened(browser, served, f"letters/{DEAD}", (1180, 460), "light") as page:
        page.get_by_text("read", exact=True).wait_for()
        page.screenshot(path=folder / "ui-letters.png")
    with opened(browser, served, f"group/{GROUP}", (390, 800), "light") as page:
        page.get_by_role("group", name="Commands").get_by_role("button", name="Drain", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Dry run").click()
        page.get_by_role("button", name="Send to 3 members").wait_for()
        page.screenshot(path=folder / "ui-phone.png")


def every(browser: Browser, served: Served, folder: Path) -> None:
    for name, size in WIDTHS.items():
        for theme in ("light", "dark"):
            for view, where in (("group", f"group/{GROUP}"), ("jvm", "group/bookings-jvm"), ("groups", "")):
                with opened(browser, served, where, size, theme) as page:
                    page.screenshot(path=folder / f"{view}-{name}-{theme}.png", full_page=True)
            with opened(browser, served, f"letters/{DEAD}", size, theme) as page:
                page.screenshot(path=folder / f"letters-{name}-{theme}.png")
                page.get_by_role("button", name="Redrive").click()
                page.get_by_role("button", name="Dry run").click()
                page.get_by_text("Nothing was changed").wait_for()
                page.screenshot(path=folder / f"redrive-{name}-{theme}.png")
            with opened(browser, served, f"group/{GROUP}", size, theme) as page:
                for verb in ("Keys", "Adjust", "Seek"):
                    page.get_by_role("group", name="Commands").get_by_role("button", name=verb, exact=True).click()
                    page.screenshot(path=folder / f"{verb.lower()}-{name}-{theme}.png")
                    page.keyboard.press("Escape")
                page.get_by_role("table", name="Keys that wait").locator("td button").first.click()
                page.get_by_text('"standing"').wait_for()
                page.screenshot(path=folder / f"record-{name}-{theme}.png")


@contextmanager
def opened(browser: Browser, served: Served, where: str, size: tuple[int, int], theme: str) -> Iterator[Page]:
    """A tab that shows it, unlocked."""
    with chromium.tab(browser, *size, color_scheme=theme, device_scale_factor=1) as (page, complaints):
        page.goto(f"{served.url}#/{where}")
        page.locator("tbody tr:not(.empty)").first.wait_for()
        page.get_by_role("button", name="Unlock", exact=True).click()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("dialog").get_by_role("button", name="Unlock").click()
        page.get_by_role("button", name="Lock", exact=True).wait_for()
        yield page
        assert complaints == []


if __name__ == "__main__":
    main()
