"""`python -m kit.step_member OPTIONS`: a member with two steps a record, in a process of its own, to be killed.

It tells a service (`kit.step_service`) of each call, each answer that it was given, and each record that it is through
with. OPTIONS is a JSON object: kafka (librdkafka settings), topic, service (host and port), name.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any

import keylane as kl


def main(options: dict[str, Any]) -> None:
    own = threading.local()

    def tell(*said: object) -> str:
        if not hasattr(own, "file"):
            own.file = socket.create_connection(tuple(options["service"])).makefile("rw")
        own.file.write(json.dumps([options["name"], *said]) + "\n")
        own.file.flush()
        return str(own.file.readline()).strip()

    def handle(record: kl.Record, context: kl.Context) -> None:
        place = f"{record.partition}@{record.offset}"
        answers = []
        for name in ("ask", "bill"):
            answers.append(context.step(tell, "called", place, name, name=name))
            tell("given", place, name, answers[-1])
        tell("through", place, *answers)

    pipeline = kl.Pipeline(
        kafka=options["kafka"],
        topics=[options["topic"]],
        handler=handle,
        workers=kl.Threads(4),
        steps=kl.Steps(),
        offset_reset="earliest",
        commit=kl.Commit(interval_ms=100),
        retries=kl.Retries(max_attempts=None, delay_ms=10),
        revoke_timeout_ms=1_000,
    )
    with kl.ParallelConsumer(pipeline) as consumer:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
