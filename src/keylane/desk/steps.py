"""The steps of single records, as the log of their partition has them.

The idea: the log is read as its owner reads it, without becoming the owner: members go on with their steps meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.delivery.checksums import checksum
from keylane.delivery.steps.table import StepTable
from keylane.desk.payloads import plain, time_text
from keylane.kafka.step_topics import name_of, read_log

if TYPE_CHECKING:
    from keylane.delivery.steps.table import KeptStep
    from keylane.desk import Report
    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.pipeline import Pipeline
    from keylane.records import Record


def steps_report(
    admin: Admin, kafka: Settings, group: str, pipeline: Pipeline | None, record: Record, *, payloads: bool
) -> list[Report] | None:
    """What is kept of a record, the oldest first; the answers with `payloads`. None where the group has no topic for
    steps of the record's. Raises `PeerError`."""
    steps = None if pipeline is None else pipeline.steps
    topic = (None if steps is None else steps.topic) or name_of(group, record.topic)
    if record.partition >= admin.topics([topic]).get(topic, 0):
        return None
    table = StepTable(admin.topic_ids([record.topic]).get(record.topic, ""), record.partition)
    start = admin.log_starts({(topic, record.partition)})[topic, record.partition] or 0
    read_log(kafka, topic, record.partition, start, table.read)
    proof = checksum(record.raw_key, record.raw_value, record.timestamp_ms)
    return [
        _row(one) | ({"answer": plain(one.answer[1:])} if payloads else {})
        for one in table.kept(record.offset)
        if one.step.record.checksum == proof
    ]


def _row(one: KeptStep) -> Report:
    return {"step": one.step.name, "key": one.step.key, "bytes": len(one.answer) - 1, "kept": time_text(one.written_ms)}
