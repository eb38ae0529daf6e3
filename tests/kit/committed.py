"""What a reader of committed records sees of a topic, in another client library (aiokafka)."""

from __future__ import annotations

from peers.committed_reader import committed_records

from keylane.kafka.admin import Admin


def committed_values(servers: str, topic: str, *, now: bool = False) -> list[bytes]:
    """The values, sorted. Waits while a transaction is open, unless `now`: then what is readable at this moment."""
    admin = Admin({"bootstrap.servers": servers})
    names = [(topic, number) for number in range(admin.topics()[topic])]
    return sorted(one.value for one in committed_records(servers, admin.log_ends(names, read_committed=now)))
