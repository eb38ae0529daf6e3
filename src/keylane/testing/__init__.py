"""For tests: `broker()`, a Kafka broker inside a test; and the fakes, oracles and clients of keylane's own tests."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keylane.testing.embedded import EmbeddedBroker

__all__ = ["broker"]


def broker(
    *,
    topics: Mapping[str, int] | None = None,
    settings: Mapping[str, str] | None = None,
    users: Mapping[str, str] | None = None,
) -> EmbeddedBroker:
    """A Kafka broker for the length of a `with` (or `async with`) block; see `EmbeddedBroker` and docs/testing.md."""
    with _without_hypothesis():
        from keylane.testing.embedded import EmbeddedBroker

    return EmbeddedBroker(topics=topics, settings=settings, users=users)


@contextmanager
def _without_hypothesis() -> Iterator[None]:
    """kio registers its types with hypothesis wherever that is installed: a third of the first start of a broker. Where
    hypothesis is not imported yet, it is not there while kio is; later imports find it as ever."""
    if "hypothesis" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]
