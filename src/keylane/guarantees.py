"""What `delivery=` needs of a pipeline's other options, and what it refuses, each in one sentence (docs/delivery.md).

The idea: a guarantee that another option would break is not given silently without it: the pipeline is refused where it
is made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from keylane.errors import UsageError
from keylane.telling import kind_of

if TYPE_CHECKING:
    from keylane.options import Pipeline

Delivery = Literal["at_most_once", "at_least_once", "almost_once", "transactional", "exactly_once"]

NOT_IN_DATAFRAMES = {
    "at_most_once": "Spark runs the tasks of a batch that failed again",
    "almost_once": "Spark's checkpoint goes on batch by batch, not record by record",
    "transactional": "a stream's progress is in Spark's checkpoint, which no Kafka transaction covers",
    "exactly_once": "a row that was processed before has no result to hand on",
}
"""Why the DataFrame pipeline refuses them."""

TRANSACTION_TIMEOUT_MS = 10_000
"""`transaction.timeout.ms`, unless the pipeline says more: so long readers of committed records wait for a process that
died in a transaction. Kafka Streams' default."""


def check_delivery(pipeline: Pipeline) -> None:
    """Raises `UsageError` for what cannot hold together."""
    if pipeline.delivery == "transactional":
        _check_transactional(pipeline)
    if pipeline.delivery == "at_most_once":
        _check_at_most_once(pipeline)
    if pipeline.delivery in ("at_most_once", "almost_once"):
        _check_commits_by_record(pipeline)
    _check_exactly_once(pipeline)


def _check_at_most_once(pipeline: Pipeline) -> None:
    given = pipeline.retries
    if given == type(given)():  # the default: there are none
        object.__setattr__(pipeline, "retries", type(given)(max_attempts=1))
    elif given.max_attempts != 1:
        raise UsageError(
            f"retries={given!r}: delivery='at_most_once' runs a record once, whatever comes of it: leave retries out"
        )
    if pipeline.not_before is not None:
        raise UsageError(
            "not_before: delivery='at_most_once' commits a record before it is scheduled, so that it would be lost "
            "with the process while it waits: use another delivery"
        )
    if pipeline.on_committed is not None:
        raise UsageError(
            "on_committed: delivery='at_most_once' commits a record before it runs, so that its commit says nothing of "
            "what came of it: use on_commit"
        )


def _check_transactional(pipeline: Pipeline) -> None:
    if pipeline.assignment:
        raise UsageError(
            f"assignment={pipeline.assignment!r}: delivery='transactional' fences a member that was frozen by its "
            "group's generation, and partitions assigned by hand have none: give topics"
        )
    if pipeline.on_produced is not None:
        raise UsageError(
            "on_produced: delivery='transactional' may take an output back after it was acknowledged: use on_committed"
        )
    if str(pipeline.kafka.get("isolation.level", "read_committed")) != "read_committed":
        raise UsageError(
            f"kafka['isolation.level']={pipeline.kafka['isolation.level']!r}: delivery='transactional' would process "
            "records that their producer takes back: leave it out"
        )
    if str(pipeline.kafka.get("enable.idempotence", True)).lower() != "true":
        raise UsageError(
            f"kafka['enable.idempotence']={pipeline.kafka['enable.idempotence']!r}: delivery='transactional' needs an "
            "idempotent producer: leave it out"
        )
    longest_ms = int(pipeline.kafka.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
    if pipeline.commit_interval_s * 1000 * 2 > longest_ms:
        raise UsageError(
            f"commit_interval_ms={pipeline.commit_interval_s * 1000:.0f}: delivery='transactional' commits a "
            f"transaction as often, and the broker aborts it after transaction.timeout.ms={longest_ms}: give at most "
            "half of that"
        )


def check_no_stream(delivery: str) -> None:
    """Raises `UsageError` where results may not be shown before they are committed."""
    if delivery == "transactional":
        raise UsageError(
            "stream() shows results before they are committed, and delivery='transactional' may take them back: read "
            "the outputs with isolation.level=read_committed, or use on_committed"
        )


def _check_commits_by_record(pipeline: Pipeline) -> None:
    if pipeline.commit_mode != "async" or pipeline.commit_every_records:
        raise UsageError(
            f"commit_mode={pipeline.commit_mode!r}, commit_every_records={pipeline.commit_every_records}: "
            f"delivery={pipeline.delivery!r} says itself when commits go: leave both out"
        )


def _check_exactly_once(pipeline: Pipeline) -> None:
    if pipeline.delivery != "exactly_once":
        for name in ("store", "identity"):
            if getattr(pipeline, name) is not None:
                raise UsageError(f"{name} is for delivery='exactly_once': give that, too")
        return
    if not isinstance(pipeline.store, str) and not hasattr(pipeline.store, "open"):
        raise UsageError(
            f"store is {kind_of(pipeline.store)}: delivery='exactly_once' needs one: the path of a SQLite file, a "
            "postgresql:// address, or a keylane.delivery store"
        )
    if pipeline.store == "":
        raise UsageError("store='': give the path of a SQLite file, or a postgresql:// address")
    if pipeline.identity is not None and not callable(pipeline.identity):
        raise UsageError(f"identity={pipeline.identity!r}: give a function of (record) that returns a str or bytes")
    retention = pipeline.identity_retention_ms
    if isinstance(retention, bool) or not isinstance(retention, int) or retention < 1:
        raise UsageError(f"identity_retention_ms={retention!r}: give a whole number of at least 1")
    if pipeline.workers == "process":
        raise UsageError(
            "workers='process': a database transaction is open in the process that commits it: leave workers='auto' "
            "under delivery='exactly_once', or use lanes for more cores"
        )
    if pipeline.batch_size > 1 and pipeline.retries.max_attempts == 1:
        raise UsageError(
            "retries: under delivery='exactly_once' one record that fails rolls back its batch, and the others are "
            "tried again each alone: give max_attempts of at least 2, or batch_size=1"
        )


def check_commits(pipeline: Pipeline) -> None:
    """Raises `UsageError` for what `commits` cannot be together with."""
    if pipeline.commits == "group":
        if pipeline.start_offsets is not None:
            raise UsageError(
                "start_offsets is for commits='external': a group starts from what it has committed; set that with "
                "`keylane groups reset`, or ParallelConsumer.seek"
            )
        return
    if not callable(pipeline.start_offsets):
        raise UsageError(
            f"start_offsets={pipeline.start_offsets!r}: commits='external' needs a function of a list of (topic, "
            "partition) that returns their offsets"
        )
    if pipeline.delivery != "at_least_once":
        raise UsageError(
            f"delivery={pipeline.delivery!r} needs commits that keylane makes: leave it at 'at_least_once' with "
            "commits='external', where what is repeated is up to the offsets that you keep"
        )
    if pipeline.on_committed is not None:
        raise UsageError("on_committed: with commits='external' there are no commits: use on_commit")


_DURATION = re.compile(
    r"by_duration:P(?=.)(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)


def duration_ms(offset_reset: str) -> int | None:
    """The duration of "by_duration:PnDTnHnMnS" in milliseconds (KIP-1106); None for something else."""
    found = _DURATION.fullmatch(offset_reset)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(found[name] or 0) for name in "dhms")
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def check_dataframe_delivery(delivery: str) -> None:
    """Raises `UsageError` for what the DataFrame pipeline cannot give."""
    if delivery in NOT_IN_DATAFRAMES:
        raise UsageError(
            f"delivery={delivery!r} is for pipelines in one process and in lanes: {NOT_IN_DATAFRAMES[delivery]}"
        )
    if delivery != "at_least_once":
        raise UsageError(f"delivery={delivery!r}: give 'at_least_once'")
