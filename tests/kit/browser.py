"""A real Chromium, where there is one, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

WAIT_MS = 60_000
REFUSED = "the server responded with a status of 4"
"""Told of each request that is refused, which the page shows."""


def chromium() -> str | None:
    """Its path; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def missing() -> str | None:
    """What is not here, and how to have it; None when all is."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is missing: pip install playwright"
    return None if chromium() else "chromium is missing: apt-get install --no-install-recommends chromium"


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to start its sandbox as root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=as_root)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Browser, width: int = 1440, height: int = 900, **options: object) -> Iterator[tuple[Page, list[str]]]:
    """A page of its own, and what it complained of: errors, what its policy forbids, requests to elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console",
        lambda said: complaints.append(said.text) if said.type == "error" and REFUSED not in said.text else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: complaints.append(request.url) if not request.url.startswith("http://127.0.0.1:") else None,
    )
    try:
        yield page, complaints
    finally:
        context.close()
