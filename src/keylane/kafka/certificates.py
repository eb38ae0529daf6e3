"""`CertificateWatch`: the certificates or the authority of the brokers were exchanged, and so were the client's files.

The idea: librdkafka reads `ssl.*.location` once, when a client is made. Where brokers then have certificates of another
authority, or no longer take the client's, its clients try for ever, though the files beside them are right by now. So
once a certificate is refused, the files are looked at: if they are others than those that the clients have, and a
connection with them comes about, the consumer ends with an error that says so, and a new one can begin.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.errors import ExchangedCertificatesError, UsageError
from keylane.kafka.link import Link, addresses_of
from keylane.kafka.login import before_login_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AGAIN_S = 5.0
"""Between two looks, while certificates are refused."""
LOOKED_FOR_S = 90.0
"""For how long it is looked after a refusal: librdkafka tells the same one each 30 s at most."""
ANSWER_S = 5.0
"""For one connection."""

State = dict[str, tuple[int, int, int] | None]
"""By setting, what changes with the file; None: there is none."""


class CertificateWatch:
    """Of one consumer. Thread safety: any thread; looks have a thread of their own."""

    def __init__(self, kafka: Mapping[str, Any], name: str, fail: Callable[[BaseException], None]) -> None:
        """`fail` is told of the end."""
        self._kafka = kafka
        self._fail = fail
        self._files = state_of(kafka)
        self._refused_at: float | None = None
        self._wakes = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-certificates", daemon=True)

    def start(self) -> None:
        if self._files:
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._wakes.set()

    def refused(self) -> None:
        """A certificate is refused: the broker's here, or ours there."""
        self._refused_at = monotonic()
        self._wakes.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wakes.wait()
            at = self._refused_at
            if at is None or monotonic() >= at + LOOKED_FOR_S:
                self._wakes.clear()
            elif self.look():
                return
            self._closed.wait(AGAIN_S)

    def look(self) -> bool:
        """Whether the files are others, and brokers take them: then `fail` was told."""
        changed = self._changed()
        if not changed or not self._connects():
            return False
        self._fail(
            ExchangedCertificatesError(
                "certificates were exchanged since this consumer began: the brokers take the files of "
                f"{', '.join(changed)} as they are now, and refuse what they were"
            )
        )
        return True

    def _changed(self) -> list[str]:
        now = state_of(self._kafka)
        return [name for name in now if now[name] != self._files[name]]

    def _connects(self) -> bool:
        try:
            login = before_login_of(self._kafka)
            for address in addresses_of(self._kafka):
                try:
                    with closing(Link(address, login, ANSWER_S)) as link:
                        link.offered()
                except OSError:
                    continue
                return True
        except UsageError:  # files that do not fit each other yet, or settings that only librdkafka has
            pass
        return False


def state_of(kafka: Mapping[str, Any]) -> State:
    """Of each file that TLS has."""
    if not str(kafka.get("security.protocol", "")).lower().endswith("ssl"):
        return {}
    paths = {name: str(path) for name, path in kafka.items() if name.startswith("ssl.") and name.endswith(".location")}
    return {name: _stat(path) for name, path in paths.items()}


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
