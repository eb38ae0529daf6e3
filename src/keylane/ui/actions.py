"""What the page asks for once: single records, dead letters, and commands to members. Each is one of the desk's
functions.

What a page sends is not trusted to have the right shape: what is wrong is refused by name. Each answer has, as `line`,
the command that does the same.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal, TypeGuard, TypeVar

from keylane.consumer.events import Pause, Resume
from keylane.desk import records
from keylane.desk.commands import Order, adjustment, seeking, send
from keylane.desk.groups import named_in, selected
from keylane.desk.letters import Queue, Wanted, list_report, redrive_group, show_report
from keylane.desk.purge import Below, purge
from keylane.desk.redrive import How, redrive
from keylane.desk.redrive_in_group import redrive_in_group
from keylane.errors import UsageError
from keylane.flow.keys import KeyRule, Treatment, Where
from keylane.operations.commands import Release
from keylane.options import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.desk import Report
    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.operations.commands import Asked
    from keylane.pipeline import Pipeline

TREATMENTS: dict[str, Treatment] = {"hold-key": "hold", "limit-key": "limit", "skip-key": "skip"}
KEYED = (*TREATMENTS, "release-key")
SINGLE = ("skip-record", "park-record", "replay-record")
COMMANDS = ("pause", "resume", "drain", "adjust", "seek", *KEYED, *SINGLE)
RATES = ("records_per_s", "per_partition", "per_key")
PLACES: tuple[Literal["earliest", "latest", "time", "offset"], ...] = ("earliest", "latest", "time", "offset")
"""Where a seek may go."""
BELOW: tuple[Literal["redriven", "time", "offset", "latest"], ...] = ("redriven", "time", "offset", "latest")
"""What a purge may delete."""
Of = TypeVar("Of", bound=str)
MOST = 2**63 - 1
"""Of any number that a page gives: what Kafka's protocol holds."""
MOST_LETTERS = 500


class Actions:
    """Of one server. Raises what the desk does, and `UsageError` for what is wrong in `body`. Thread safety: any
    thread."""

    def __init__(self, kafka: Settings, admin: Admin, token: str | None, pipelines: Sequence[Pipeline] = ()) -> None:
        """The pipelines' deserializers show payloads: of records of their groups, and of letters in their topics."""
        self._kafka, self._admin, self._token = kafka, admin, token
        self._pipelines = pipelines

    # --- members ---

    def operate(self, body: Report) -> Report:
        """Send a command, with `execute`; else say who would get it."""
        group, do = _text(body, "group"), _text(body, "do")
        if do not in COMMANDS:
            raise UsageError(f"do {do!r}: give one of {', '.join(COMMANDS)}")
        asked = self._asked(do, body)
        order = Order(group, do, asked, _flag(body, "execute"), _number(body, "wait_ms", 30_000))
        report, is_done = send(self._kafka, self._admin, self._token, order)
        return report | {"done": is_done, "line": operate_line(group, do, body)}

    def _asked(self, do: str, body: Report) -> Asked:
        if do in SINGLE:
            dlq, reason = _optional(body, "dlq"), _optional(body, "reason")
            return records.asked_of(self._admin, self._kafka, do, _texts(body, "records"), dlq, reason)
        if do in KEYED:
            return _rule(do, body)
        topics = _texts(body, "topics")
        if do == "adjust":
            rates = _rates(body.get("rates"))
            most = None if body.get("max_concurrency") is None else _number(body, "max_concurrency")
            return adjustment(most, rates, as_in_pipeline=_flag(body, "as_in_pipeline"))
        names = tuple(selected(topics, self._admin.topics(named_in(topics)))) if topics else None
        if do == "seek":
            if not names:
                raise UsageError("seek: name the partitions to seek in, as flights:0,3-5")
            kind, value = _target(body, PLACES)
            return seeking(names, kind, value)
        return Resume(names) if do == "resume" else Pause(names)

    def record(self, asked: Mapping[str, object], *, payloads: bool = False) -> Report:
        """Where a record of a group stands, and what it is; with `payloads` key, value and headers too."""
        group, name = _text(asked, "group"), _text(asked, "record")
        pipeline = next((one for one in self._pipelines if one.group_id == group), None)
        return records.show_report(self._admin, self._kafka, group, [name], pipeline, payloads=payloads)

    # --- dead letters ---

    def topics(self) -> Report:
        """All topics that are not Kafka's own, by name."""
        return {"topics": sorted(name for name in self._admin.topics() if not name.startswith("__"))}

    def letters(self, asked: Mapping[str, str]) -> Report:
        """The oldest letters of a topic."""
        queue = self._queue(_text(asked, "topic"))
        limit = min(_digits(asked, "limit", "limit: give a whole number") if "limit" in asked else 100, MOST_LETTERS)
        return list_report(queue, _wanted(asked), limit, waiting=asked.get("waiting") == "yes")

    def letter(self, asked: Mapping[str, object], *, payloads: bool = False) -> Report:
        """One letter; with `payloads` key, value and headers too."""
        partition, offset = (
            _digits(asked, name, "a letter is named by topic, partition and offset") for name in ("partition", "offset")
        )
        return show_report(self._queue(_text(asked, "topic")), partition, offset, payloads=payloads)

    def redrive(self, body: Report) -> Report:
        """Send letters back, with `execute`; else count those that would go."""
        queue = self._queue(_text(body, "topic"))
        limit = None if body.get("limit") is None else _number(body, "limit")
        rate = None if body.get("rate") is None else float(_number(body, "rate"))
        rounds = _number(body, "max_rounds", 3)
        how = How(_flag(body, "execute"), _optional(body, "to"), rounds, rate, limit)
        if (group := _optional(body, "in_group")) is None:
            report = redrive(queue, _wanted(body), how)
        else:
            report = redrive_in_group(queue, _wanted(body), how, group, self._token)
        return report | {"line": redrive_line(body)}

    def purge(self, body: Report) -> Report:
        """Delete letters for good, with `execute`; else count those that would be."""
        queue = self._queue(_text(body, "topic"))
        kind, value = _target(body, BELOW)
        below = Below(kind, value)
        return purge(queue, (), below, execute=_flag(body, "execute")) | {"line": purge_line(body)}

    def _queue(self, topic: str) -> Queue:
        if topic not in self._admin.topics([topic]):
            raise UsageError(f"the topic {topic!r} does not exist")
        pipeline = next((one for one in self._pipelines if _letters_go_to(one) == topic), None)
        return Queue(topic, redrive_group(topic), self._kafka, self._admin, pipeline)


def _letters_go_to(pipeline: Pipeline) -> str | None:
    given_up = pipeline.on_exhausted
    return given_up.topic if isinstance(given_up, DeadLetter) else None


# --- the same, on the command line ---


def operate_line(group: str, do: str, body: Report) -> str:
    """`keylane operate …` with the same effect."""
    words = ["keylane", "operate", do, group]
    if do in KEYED:
        words += [
            word for name in ("key", "where") if _optional(body, name) for word in (f"--{name}", _text(body, name))
        ]
        words += ["--all"] if _flag(body, "all") else []
        words += ["--per-s", f"{_rate(body):g}"] if do == "limit-key" else []
    for topic in _texts(body, "topics") if do in ("pause", "resume", "drain", "seek") else ():
        words += ["--topic", topic]
    if do == "adjust":
        if body.get("max_concurrency") is not None:
            words += ["--max-concurrency", str(body["max_concurrency"])]
        for name, rate in _rates(body.get("rates")).items():
            words += [f"--{name.replace('_', '-')}", "unlimited" if rate is None else f"{rate:g}"]
        words += ["--as-in-pipeline"] if _flag(body, "as_in_pipeline") else []
    if do in SINGLE:
        words += _texts(body, "records")
        if do == "park-record":
            words += [word for name in ("dlq", "reason") if _optional(body, name) for word in (f"--{name}", body[name])]
    if do == "seek":
        kind, value = _target(body, PLACES)
        words += [f"--to-{'datetime' if kind == 'time' else kind}"]
        words += [_time(value)] if kind == "time" else [str(value)] if kind == "offset" else []
    return shlex.join([*words, *(["--execute"] if _flag(body, "execute") else [])])


def redrive_line(body: Report) -> str:
    """`keylane dlq redrive …` with the same effect."""
    words = ["keylane", "dlq", "redrive", _text(body, "topic")]
    for name, option in (
        ("from", "topic"),
        ("error",) * 2,
        ("reason",) * 2,
        ("key",) * 2,
        ("to",) * 2,
        ("in_group", "in-group"),
    ):
        if (text := _optional(body, name)) is not None:
            words += [f"--{option}", text]
    for name in ("since", "until"):
        if (at_ms := _moment(body, name)) is not None:
            words += [f"--{name}", _time(at_ms)]
    for name in ("limit", "rate", "max_rounds"):
        if body.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(body[name])]
    return shlex.join([*words, *(["--execute"] if _flag(body, "execute") else [])])


def purge_line(body: Report) -> str:
    """`keylane dlq purge …` with the same effect."""
    kind, value = _target(body, BELOW)
    words = ["keylane", "dlq", "purge", _text(body, "topic"), f"--to-{'datetime' if kind == 'time' else kind}"]
    words += [_time(value)] if kind == "time" else [str(value)] if kind == "offset" else []
    return shlex.join([*words, *(["--execute"] if _flag(body, "execute") else [])])


def _time(value: int) -> str:
    from keylane.desk.payloads import time_text

    return time_text(value)


# --- what a page sends ---


def _text(body: Mapping[str, object], name: str) -> str:
    found = body.get(name)
    if not isinstance(found, str) or not found:
        raise UsageError(f"{name}: give a text")
    return found


def _optional(body: Mapping[str, object], name: str) -> str | None:
    return None if body.get(name) in (None, "") else _text(body, name)


def _texts(body: Report, name: str) -> list[str]:
    found = body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UsageError(f"{name}: give a list of texts, such as flights:0,3-5")
    return found


def _number(body: Report, name: str, default: int | None = None) -> int:
    found = body.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MOST:
        raise UsageError(f"{name} {found!r}: give a whole number from 0 to {MOST}")
    return found


def _digits(asked: Mapping[str, object], name: str, refusal: str) -> int:
    """The same of a query or of a body, where it may be text."""
    text = str(asked.get(name, ""))
    if len(text) > len(str(MOST)) or not (text.isascii() and text.isdecimal()) or int(text) > MOST:
        raise UsageError(refusal)
    return int(text)


def _flag(body: Report, name: str) -> bool:
    return body.get(name) is True


def _rates(found: object) -> dict[str, float | None]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not set(found) <= set(RATES):
        raise UsageError(f"rates: give some of {', '.join(RATES)}")
    for name, rate in found.items():
        if rate is not None and not _is_rate(rate):
            raise UsageError(f"rates: {name} {rate!r}: give records a second, or null for no limit")
    return found


def _target(body: Report, kinds: Sequence[Of]) -> tuple[Of, int]:
    to = body.get("to")
    given = to.get("kind") if isinstance(to, dict) else None
    kind = next((one for one in kinds if one == given), None)
    if not isinstance(to, dict) or kind is None:
        raise UsageError(f"to: give a kind, one of {', '.join(kinds)}")
    return kind, _number(to, "value", 0)


def _rule(do: str, body: Report) -> Asked:
    """What a command by key asks for."""
    key, where = _optional(body, "key"), _optional(body, "where")
    every = do == "release-key" and _flag(body, "all")
    if (key is not None) + (where is not None) + every != 1:
        raise UsageError(f"{do}: give a key, or an expression")
    found = None if every else Where.parse(where) if where is not None else Where.of_key((key or "").encode())
    if do == "release-key" or found is None:
        return Release(found)
    return KeyRule(found, TREATMENTS[do], _rate(body) if do == "limit-key" else None)


def _rate(body: Report) -> float:
    rate = body.get("per_s")
    if not _is_rate(rate):
        raise UsageError(f"per_s {rate!r}: give records a second")
    return float(rate)


def _is_rate(found: object) -> TypeGuard[float]:
    return isinstance(found, int | float) and not isinstance(found, bool) and -MOST <= found <= MOST


def _wanted(asked: Mapping[str, object]) -> Wanted:
    key = _optional(asked, "key")
    return Wanted(
        _optional(asked, "from"),
        _optional(asked, "error"),
        _optional(asked, "reason"),
        None if key is None else key.encode(),
        _moment(asked, "since"),
        _moment(asked, "until"),
    )


def _moment(asked: Mapping[str, object], name: str) -> int | None:
    """Milliseconds since the epoch; of a query they are text."""
    found = asked.get(name)
    return None if found in (None, "") else _digits(asked, name, f"{name} {found!r}: give milliseconds since the epoch")
