"""For tests: `broker()`, a Kafka broker inside a test, with faults that the test asks for; and `StoreContract`, what a
store of one's own has to pass."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keylane.testing.embedded import EmbeddedBroker
    from keylane.testing.faults import Disconnect, Fault
    from keylane.testing.stores import StoreContract

__all__ = ["Disconnect", "EmbeddedBroker", "Fault", "StoreContract", "broker"]

_MODULES = {"Disconnect": "faults", "EmbeddedBroker": "embedded", "Fault": "faults", "StoreContract": "stores"}


def __getattr__(name: str) -> Any:
    """Names that are imported when they are first used: a store's tests need no broker."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _without_hypothesis():
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def broker(
    *,
    topics: Mapping[str, int] | None = None,
    settings: Mapping[str, str] | None = None,
    users: Mapping[str, str] | None = None,
) -> EmbeddedBroker:
    """A Kafka broker for the length of a `with` (or `async with`) block; see `EmbeddedBroker` and docs/testing.md."""
    from keylane.testing import EmbeddedBroker

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
