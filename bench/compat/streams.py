"""Kafka Streams, exactly once (EOS v2), while it is killed."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from peers import jvm
from peers.committed_reader import committed_records

from compat.results import Outcome, check, until
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.records import Output

if TYPE_CHECKING:
    from collections.abc import Callable

KILLS = 4
STEP = 500
KEYS = 20
PARTITIONS = 3
WAIT_S = 240.0
"""For a JVM that starts on a crowded machine, and then waits for what the killed one has left."""


def streams(bootstrap: str, folder: str) -> list[Outcome]:
    """An application that counts the records of each key: one that is lost, or comes twice, changes all later ones."""
    return [check(f"exactly once (EOS v2), killed {KILLS} times", lambda: _counts_under_kills(bootstrap, Path(folder)))]


def _counts_under_kills(bootstrap: str, folder: Path) -> None:
    Admin({"bootstrap.servers": bootstrap}).create_topics(dict.fromkeys(("orders", "counted"), PARTITIONS))
    command = jvm.streams(bootstrap, "counting", "orders", "counted", str(folder / "state"))
    made = 0
    with (folder / "streams.log").open("ab") as log:
        for kill in range(KILLS + 1):
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                seen = len(_values(bootstrap))
                with BulkProducer(bootstrap) as producer:
                    for number in range(made, made + STEP):
                        producer.produce(Output("orders", b"key-%d" % (number % KEYS), b"%d" % number))
                made += STEP
                is_last = kill == KILLS
                until(_grown(bootstrap, made if is_last else seen + 1), f"records after {kill} kills", WAIT_S)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
    expected = Counter(b"%d %d" % (number, number // KEYS + 1) for number in range(made))
    found = Counter(_values(bootstrap))
    missing, more = (expected - found).total(), (found - expected).total()
    assert found == expected, f"{missing} of {made} values are missing, {more} are too many"


def _grown(bootstrap: str, count: int) -> Callable[[], bool]:
    return lambda: len(_values(bootstrap)) >= count


def _values(bootstrap: str) -> list[bytes]:
    """What is committed by now."""
    names = [("counted", number) for number in range(PARTITIONS)]
    ends = Admin({"bootstrap.servers": bootstrap}).log_ends(names, read_committed=True)
    return [one.value or b"" for one in committed_records(bootstrap, ends)]
