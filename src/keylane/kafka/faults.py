"""Kafka's errors as keylane's: which pass by themselves, which stop the consumer, and what the user can do.

The idea: a broker that restarts shows as many different errors; all that pass by themselves are logged once and ridden
out. Which those are is one table (`keylane.kafka.error_table`); foreign exceptions are mapped here and nowhere else.
"""

# ruff: noqa: SLF001 - the client's names for librdkafka's own errors begin with an underscore

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from keylane.consumer.commits import CommitProblem
from keylane.errors import PeerError, UsageError
from keylane.kafka.client_log import Repeats
from keylane.kafka.error_table import Mark, Meaning, marked, meaning
from keylane.kafka.places import for_records
from keylane.kafka.setting_names import meant
from keylane.kafka.token_function import SETTING, TokenFunction
from keylane.telling import HIDDEN, is_secret, logger_of, size_in_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Message


logger = logger_of("keylane.kafka")

Client = TypeVar("Client")

PARTITION_END = KafkaError._PARTITION_EOF
OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET
"""The log has nothing at the position, and the client does not reset it by itself."""

DAMAGED = marked(Mark.DAMAGED)
"""Records that do not hold together. The client would go on behind those that it finds, and ask for those that the
broker finds for ever."""

REFUSED = meaning(Meaning.ENDING)
"""Trying again cannot help."""

REFUSED_IN_TRANSACTIONS = REFUSED - marked(Mark.PRODUCER)
"""Another producer would be told the same."""

PASSING = meaning(Meaning.PASSING)
"""A question to the broker that failed like this is worth asking again: it restarts, or elects a leader."""

NO_ANSWER = marked(Mark.NO_ANSWER)
"""No broker said anything."""

LOGIN_REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
"""The name or the password is wrong."""

NO_PARTITION = marked(Mark.NO_PARTITION)
"""The broker knows no such topic or partition: for some questions an answer, and no failure."""

NOT_ALLOWED = marked(Mark.NOT_ALLOWED)
"""The user lacks a right: whether a topic or a group is there, the broker does not say."""

MOVED_ON = marked(Mark.MOVED_ON)
"""The group has given the member's partitions to others, or will: it learns that with its next heartbeat."""

ABORTED = marked(Mark.BLAMELESS) | PASSING - NO_PARTITION
"""An output that failed like this is not at fault: its transaction was aborted, or its broker was away."""

REFUSED_BATCHES = marked(Mark.BATCH)
"""The broker refuses the batch that an output was in: it may be another output's fault, or only the batch too large."""


QUICK_START = {
    # A client connects twice, to a bootstrap server and to the broker that it learns of there, and librdkafka waits for
    # half of this in between (measured: the first answer after 58 ms with its default of 100 ms, after 14 with 20).
    "reconnect.backoff.ms": 20,
}
"""Defaults of all clients."""


def client_of(make: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any], kind: str = "client") -> Client:
    """A client with these settings, and keylane's defaults, at the brokers that have the records (offset servers: by
    `for_groups`). Raises `UsageError` when librdkafka refuses them, in its words: they name the setting, and the values
    of the others (passwords among them) are nobody's business."""
    for name, value in settings.items():  # before librdkafka, which some of them end with the process
        if isinstance(value, str) and (size_in_utf8(value) is None or "\0" in value):
            raise UsageError(
                f"{name}={HIDDEN if is_secret(name) else ascii(value)}: it holds a character that no setting may have"
            )
    try:
        return make(QUICK_START | for_records(settings))
    except (KafkaException, TypeError, ValueError) as error:
        text = describe(error_of(error)) if isinstance(error, KafkaException) else str(error)
        if isinstance(function := settings.get(SETTING), TokenFunction) and function.failure:
            raise UsageError(function.failure) from None
        raise UsageError(f"librdkafka refuses these {kind} settings: {text}{meant(text)}") from None


def error_of(raised: KafkaException) -> KafkaError:
    """The `KafkaError` inside a `KafkaException`."""
    error = raised.args[0] if raised.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(raised))


def describe(error: KafkaError) -> str:
    """One line: Kafka's name for it, and its text."""
    return f"{error.name()}: {error.str()}"


def damage_of(event: Message) -> PeerError:
    """What a consumer ends with when it is told one of `DAMAGED`: nothing at or behind this offset was delivered."""
    error = event.error()
    assert error is not None
    topic, partition, offset = event.topic(), event.partition(), event.offset()
    return PeerError(
        f"{topic}-{partition}@{offset}: the record is damaged ({describe(error)}); restore the partition's log from a "
        f"copy, or go on behind the damage with `keylane groups reset GROUP --topic {topic}:{partition} --to-offset N` "
        "(the embedded broker's log and `keylane broker check` name its offsets)"
    )


def commit_problem(error: KafkaError) -> CommitProblem:
    """Why the broker did not take an offset. A client that librdkafka gave up takes none; what that means is found out
    by the thread that polls it."""
    code = error.code()
    return CommitProblem(
        describe(error),
        metadata_too_large=code == KafkaError.OFFSET_METADATA_TOO_LARGE,
        fatal=code in REFUSED - {KafkaError._FATAL},
        moved_on=code in MOVED_ON,
        missing=code in NO_PARTITION,
    )


def transaction_problem(error: KafkaError) -> CommitProblem:
    """Why a transaction did not end as it should. A fatal error is the producer's end, and seldom the consumer's."""
    code = error.code()
    return CommitProblem(
        describe(error),
        metadata_too_large=code == KafkaError.OFFSET_METADATA_TOO_LARGE,
        fatal=code in REFUSED_IN_TRANSACTIONS,
        fenced=error.fatal(),
        missing=code in NO_PARTITION,
    )


_NOT_VERIFIED = re.compile(r"certificate verify failed|certificate could not be verified", re.IGNORECASE)
_CERTIFICATE_REFUSED = re.compile(r"alert.*(certificate|unknown ca)", re.IGNORECASE)
"""What OpenSSL says of certificates: the broker's here, and the client's there."""


def refusal_of(error: KafkaError) -> str | None:
    """What is wrong where a login or a certificate is refused, which asking again does not mend; None for all else."""
    text = describe(error)
    if error.code() in LOGIN_REFUSED:
        return f"the broker refuses the login: correct sasl.username, sasl.password and sasl.mechanism ({text})"
    if _CERTIFICATE_REFUSED.search(text):
        return f"the broker refuses the client's certificate: correct ssl.certificate.location ({text})"
    if _NOT_VERIFIED.search(text):
        return (
            "the broker's certificate cannot be verified: correct ssl.ca.location, or the name by which "
            f"bootstrap.servers has the broker ({text})"
        )
    return None


class Faults:
    """Decides what an error that the client reports means: it is logged once, or remembered as the consumer's end.

    Thread safety: `report` and the attributes are for both of a consumer's threads; raising is the intake thread's.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._repeats = Repeats(clock)
        self.failure: BaseException | None = None
        """What to stop for; the clients can still commit and leave."""
        self.broken: BaseException | None = None
        """What ended the group's thread: nothing can be committed any more."""
        self.last: str | None = None
        """The last error's description, for messages about a broker that does not answer."""
        self.refusal: str | None = None
        """What was wrong with the last login or certificate that was refused."""
        self.on_refusal: Callable[[], None] = lambda: None
        """Called at each refusal."""

    def report(self, error: KafkaError, topic: str | None = None) -> None:
        """An error from the client, of a topic where it has one; `failure` is set when it is one to stop for."""
        text = describe(error)
        if topic is not None and topic not in text:
            text = f"topic {topic!r}: {text}"
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = text
        if (refusal := refusal_of(error)) is not None:
            self.refusal = refusal
            self.on_refusal()
        if error.fatal() or error.code() in REFUSED:
            self.fail(PeerError(refusal or f"the Kafka client cannot go on: {text}"))
            return
        if self._repeats.is_new(error.code()):
            logger.warning("%s (will be tried again)" if error.code() in PASSING else "%s", text)

    def fail(self, error: BaseException) -> None:
        """There is something to stop for; the first such thing is told."""
        self.failure = self.failure or error

    def is_new(self, what: str) -> bool:
        """Whether this has not been told for a while: who takes a member's place asks the same."""
        return self._repeats.is_new(what)

    def raise_failure(self) -> None:
        """Raise what there is to stop for, once: the client is still served until it is closed."""
        self.raise_broken()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def raise_broken(self) -> None:
        """Raise what ended the group's thread, once."""
        broken, self.broken = self.broken, None
        if broken is not None:
            raise broken
