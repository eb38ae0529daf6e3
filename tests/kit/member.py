"""`python -m kit.member OPTIONS`: a consumer in a process of its own, for tests that kill it.

It runs one pipeline to the end of its topic and notes each record in a `Ledger`. OPTIONS is a JSON object: kafka
(librdkafka settings), topic, ordering, ledger (a path), work_s (how long a record takes), slow (offsets that take
hold_s). With `stream` ("read" or "handled": when a record is complete) a handler only begins a record; it is done when
the reader of the results has looked at it for read_s. With `ends` false it runs until SIGTERM; `operations` are options
of `keylane.Operations`. It says `ready` when it
starts, and `processed N` in the end.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import keylane as kl
from kit.ledger import Ledger


def main(options: dict[str, Any]) -> None:
    ledger = Ledger(options["ledger"])
    slow = set(options["slow"])

    def handler(record: kl.Record) -> None:
        ledger.began(record)
        time.sleep(options["hold_s"] if record.offset in slow else options["work_s"])
        if options["stream"] is None:
            ledger.done(record)

    pipeline = kl.Pipeline(
        kafka=options["kafka"],
        topics=[options["topic"]],
        handler=handler,
        ordering=options["ordering"],
        offset_reset="earliest",
        commit=kl.Commit(interval_ms=100),
        operations=None if options.get("operations") is None else kl.Operations(**options["operations"]),
    )
    ending = "latest" if options["ends"] else None
    with kl.ParallelConsumer(pipeline, ending_offsets=ending) as consumer:  # type: ignore[arg-type] # a Literal
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if options["stream"] is None:
            consumer.run()
        else:
            with consumer.stream(complete=options["stream"], max_unread=options["max_unread"]) as results:
                for result in results:
                    time.sleep(options["read_s"])
                    ledger.done(result.record)
    sys.stdout.write(f"processed {consumer.snapshot().processed}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
