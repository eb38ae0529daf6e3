"""`Counters`: what the engine counts, in one mutable place that its parts share and the snapshot reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Cumulative since the consumer started; `keylane.engine.snapshot.Snapshot` says what each means."""

    processed: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    produced: int = 0
    commits: int = 0
    commit_failures: int = 0
    commits_without_map: int = 0
    commits_put_off: int = 0
    already_complete: int = 0
    lost_to_retention: int = 0
    transactions_aborted: int = 0
    stuck: int = 0
    """A gauge: handlers in threads that are over their time, or the coroutine that blocks its loop."""
    stale: int = 0
    """Completions of an earlier epoch, which changed nothing."""
    workers_died: int = 0
    """Worker processes that ended under a record."""
