"""The one tree of errors. Every error names the thing, the value, and the way out, in one line.

Three kinds are told apart: the user's fault (`UsageError`), the peer's (`PeerError`: a broker, a service, a data
folder), and ours (`InternalError`). The command line exits with 2 for the first and 1 for the others.
"""

ERROR_PREFIX = "keylane: error: "
"""Of the one line with which every command ends that fails."""


class KeylaneError(Exception):
    """The root of everything that keylane raises on purpose."""

    @property
    def logged_text(self) -> str:
        """What a log may show: an error whose text quotes a service says less there."""
        return str(self)


class UsageError(KeylaneError):
    """A wrong option, argument or combination: the caller can mend it."""


class OutputTypeError(UsageError, TypeError):
    """A field of an `Output` is of another type than its own: no attempt of the handler can mend that."""


class PeerError(KeylaneError):
    """Something outside keylane refused or failed: a broker, Java, Spark, a port, a data folder."""


class UnreadableHeadersError(PeerError):
    """A record has a header whose name is no UTF-8: the client gives none of its headers."""


class RecordTooLargeError(PeerError):
    """A record is larger than its topic takes."""


class BrokerUnavailableError(PeerError):
    """No broker answered at the given bootstrap servers within the time given."""


class FencedError(PeerError):
    """Another process has joined the group under this static member's name."""


class ExchangedCertificatesError(PeerError):
    """The brokers have certificates of another authority now, or take others, and so have the client's files: clients
    that are made anew can go on."""


class TopicDeletedError(PeerError):
    """A topic was deleted while it was read up to an ending offset; the text names what was not processed."""


class SessionEndedError(PeerError):
    """The Spark session ended, or its JVM did, while a query's lanes ran in it."""


class MetadataError(PeerError):
    """Commit metadata that is not an offset map, or one that keylane does not read (`keylane.offsets.decode`)."""


class UnknownMapError(MetadataError):
    """Commit metadata that may be an offset map, of a kind that this release does not know: it may say that records
    are complete."""


class DataFolderError(PeerError):
    """A broker's data folder is not ours, is in use, or is damaged; the text names file and position."""


class StoreError(PeerError):
    """What a store of exactly once knows is of another log than this one, or less than the group has committed. It ends
    the run, whatever is to become of records that fail."""


class StepLostError(PeerError):
    """A step's partition is another member's now, or its log cannot be written: the attempt counts for nothing."""


class ProcessedError(PeerError):
    """A row was processed before, and the store has nothing of it that could be handed on."""


class ParkedError(KeylaneError):
    """What a dead letter names whose record an operator has set aside. Nobody raises it."""


class HandlerError(KeylaneError):
    """The user's handler failed on a record for the last time, and the pipeline's rule is to halt there."""


class WorkerProcessError(PeerError):
    """A worker process ended under a record (a crash in native code, a kill), or did not come up."""


class InternalError(KeylaneError):
    """An invariant of keylane's own does not hold: a defect to report."""


def other_format(found: str | int, ours: int) -> str:
    """The way out of a file of another format version than ours: which way the other one lies."""
    if not str(found).isdecimal():
        return "that is no version: the file is damaged; restore it from a copy"
    older, newer = ("an older", "") if int(found) < ours else ("a newer", ", or one that is newer still")
    return f"{older} keylane wrote it: use that version{newer}"


class UndecodableError(KeylaneError):
    """A deserializer can make nothing of the bytes, and raised `error`, which is what is told. No attempt mends that:
    `Retries.never` has it by default."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"a deserializer raised {type(error).__name__}")
        self.error = error

    def __reduce__(self) -> tuple[type, tuple[BaseException]]:
        return type(self), (self.error,)


class OutageError(KeylaneError):
    """A service that a deserializer asks, as a schema registry, did not answer: it raised `error`, which is what is
    told. It is no fault of the record, so it uses up no attempt, and a breaker counts it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"what a deserializer asks did not answer: {type(error).__name__}")
        self.error = error

    def __reduce__(self) -> tuple[type, tuple[BaseException]]:
        return type(self), (self.error,)


class Fatal(Exception):  # noqa: N818 - the public name in user code: `raise kl.Fatal("…")`
    """Raised by a handler: do not retry this record; apply the pipeline's `on_exhausted` at once."""


class ExpiredError(KeylaneError, Fatal):
    """A record was too late to be started (`expires_ms`): it goes where `on_exhausted` says."""


class RetryAfter(Exception):  # noqa: N818 - the public name in user code: `raise kl.RetryAfter(30_000)`
    """Raised by a handler: try this record again, and not before `delay_ms` milliseconds have passed.

    It is a failed attempt like any other, and counts against `Retries.max_attempts`; only the wait is not `Retries`'.
    Any exception with an attribute `retry_after_ms` that is not None is taken so.
    """

    def __init__(self, delay_ms: int, text: str = "") -> None:
        super().__init__(text or f"to be tried again after {delay_ms} ms")
        self.retry_after_ms: int | None = delay_ms


class Throttled(RetryAfter):
    """Raised by a handler: the service asks for a slower pace, which is nobody's fault. Try this record again, not
    before `retry_after_ms` milliseconds have passed; None leaves the wait to `Retries`, as if each throttled attempt in
    a row had failed.

    It uses up no attempt and no time of `Retries.max_age_ms`, and a breaker takes it for neither a failure nor a
    success. It is counted apart from failures (`Snapshot.throttled`), and alone it never leads to a dead letter. Only
    under "at_most_once", which runs a record once, is it a failure like any other.
    """

    def __init__(self, retry_after_ms: int | None = None, text: str = "") -> None:
        wait = "" if retry_after_ms is None else f", to be tried again after {retry_after_ms} ms"
        super().__init__(retry_after_ms or 0, text or f"throttled{wait}")
        self.retry_after_ms = retry_after_ms
