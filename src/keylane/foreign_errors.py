"""What an error of foreign code says: its class, its text, and what it asks for. Nothing here raises.

The idea: user code raises what it likes, and a class of its own may answer nothing when it is looked at: its `__str__`
raises, its text has no bytes, its attributes are properties that fail. Whoever tells of such an error asks here, so
that an error never fails the one who tells of it. Of a group of errors (`asyncio.TaskGroup` raises them) the first one
that is no group is told, with how many more there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.errors import Fatal, KeylaneError, OutageError, Throttled, UndecodableError, UsageError
from keylane.telling import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    Classes = type[BaseException] | tuple[type[BaseException], ...]

MAX_TEXT = 4_096
"""Characters of an error's text that are told."""

MAX_ERRORS = 1_000
"""Errors of one group that are looked at."""

MAX_WAIT_MS = 10 * 366 * 24 * 3_600_000
"""A wait of more than ten years, by an error or a function of the user, is taken for that: a clock has no more."""


class UnloadedError(Exception):
    """Stands for an error of another process that could not be made again here. Nobody raises it."""

    def __init__(self, class_name: str, text: str, retry_after_ms: int | None = None) -> None:
        super().__init__(text)
        self.class_name = class_name
        """The other one's class, as `class_of` tells it."""
        self.retry_after_ms = retry_after_ms

    def __reduce__(self) -> tuple[type[UnloadedError], tuple[str, str, int | None]]:
        return (UnloadedError, (self.class_name, str(self), self.retry_after_ms))


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The errors that are no groups: itself, or those in it, in their order, up to `MAX_ERRORS` of all."""
    return (one for one in _all_of(error) if not _is_a(one, (BaseExceptionGroup, UndecodableError, OutageError)))


def told_of(error: BaseException) -> BaseException:
    """The one that is told: itself, or the first in it that is no group."""
    return next(leaves_of(error), error)


def _all_of(error: BaseException) -> Iterator[BaseException]:
    """Itself, and all that a group has in it, however deep; and what a deserializer raised."""
    waiting = [error]
    for _ in range(MAX_ERRORS):
        if not waiting:
            return
        one = waiting.pop()
        yield one
        if _is_a(one, BaseExceptionGroup):
            waiting.extend(reversed(_errors_in(one)[:MAX_ERRORS]))
        elif type(one) is UndecodableError or type(one) is OutageError:
            waiting.append(one.error)


_errors_in: Any = BaseExceptionGroup.exceptions.__get__  # Python's own, whatever a subclass says


def _is_a(error: BaseException, classes: Classes) -> bool:
    """By its type: `isinstance` also asks its `__class__`, which may be a property of the user's."""
    return issubclass(type(error), classes)


def is_one_of(error: BaseException, classes: Classes) -> bool:
    """Whether it is of these classes, or something in it is."""
    return any(_is_a(one, classes) for one in _all_of(error))


def is_final(error: BaseException) -> bool:
    """Whether another attempt cannot help."""
    return is_one_of(error, (Fatal, UsageError))


def is_throttled(error: BaseException) -> bool:
    """Whether it says that a service throttles, and nothing else: of a group, each of its errors."""
    leaves = list(leaves_of(error))
    return bool(leaves) and all(_is_a(one, Throttled) for one in leaves)


UNANSWERED = {"TransportError", "RequestException", "ClientConnectionError", "HTTPError"}
"""Classes by which HTTP clients (httpx, requests, aiohttp, urllib3) say that nobody answers."""
UNDECODABLE = {"SerializationError", "DecodeError", "ValidationError", "SchemaParseException"}
"""Classes by which libraries (confluent-kafka, protobuf, msgspec, jsonschema, fastavro) say that bytes are wrong."""
REFUSED_FOR_NOW = {401, 403, 408, 429}
"""Answers of a registry that say nothing of the schema."""
_CAUSES = 10


def judged_decoding(error: Exception) -> Exception:
    """What an error of a deserializer means: its bytes are wrong, or what it asks does not answer; or, as far as
    anybody knows, neither."""
    if _is_a(error, (KeylaneError, Fatal, Throttled)) or retry_after_ms(error) is not None:
        return error  # the deserializer says itself what is to be done
    chain = list(_chain_of(error))
    if any(map(_is_outage, chain)):
        return OutageError(error)
    wrong = (ValueError, TypeError, LookupError, ArithmeticError, EOFError, AttributeError, AssertionError)
    # Also what came of one: a class of the user's own, raised from what a library says of the bytes.
    if any(_is_a(one, wrong) or _names_of(one) & UNDECODABLE or type(one).__module__ == "struct" for one in chain):
        return UndecodableError(error)
    return error


def _http_status(error: BaseException) -> int | None:
    """Of an error of urllib, aiohttp, httpx, requests, botocore and those like them."""
    answer = _attribute(error, "response")
    asked = [_attribute(error, name) for name in ("status", "status_code", "code")]
    asked += [] if answer is None else [_attribute(answer, "status_code"), _attribute(answer, "status")]
    return next((one for one in asked if type(one) is int and 100 <= one <= 599), None)


def _is_outage(error: BaseException) -> bool:
    status = _attribute(error, "http_status_code")  # of confluent-kafka's SchemaRegistryError; -1 for none
    if isinstance(status, int) and (status in REFUSED_FOR_NOW or status >= 500 or status < 0):
        return True
    return _is_a(error, (OSError, TimeoutError)) or bool(_names_of(error) & UNANSWERED and status is None)


def _names_of(error: BaseException) -> set[str]:
    return {one.__name__ for one in type(error).__mro__}


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    """It, and what it came of."""
    one: BaseException | None = error
    for _ in range(_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def retry_after_ms(error: BaseException) -> int | None:
    """After how many milliseconds it asks for another attempt (`keylane.RetryAfter`): the longest of those in it."""
    asked = [ms for one in _all_of(error) if (ms := _attribute(one, "retry_after_ms")) is not None]
    numbers = [int(ms) for ms in asked if isinstance(ms, int) and not isinstance(ms, bool)]
    return min(max(0, *numbers), MAX_WAIT_MS) if numbers else None


def _attribute(of: object, name: str) -> object:
    try:
        return getattr(of, name, None)
    except BaseException:  # a property, or a `__getattr__`, of the user's
        return None


def short_class_of(error: BaseException) -> str:
    """Its class's own name."""
    return class_of(error).rpartition(".")[2]


def class_of(error: BaseException) -> str:
    """Its class, with the module where that is not Python's own."""
    told = told_of(error)
    if type(told) is UnloadedError:
        return told.class_name
    try:
        kind = type(told)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return printable(name)
    except BaseException:  # of a metaclass
        return "an error whose class has no name"


def text_of(error: BaseException, most: int = MAX_TEXT) -> str:
    """What it says, in up to `most` printable characters; line breaks are left as they are."""
    told = told_of(error)
    text = _said_by(told, most)
    more = sum(1 for _ in leaves_of(error)) - 1
    if more < 1:
        return text
    count = f"and {more} more error{'s' if more > 1 else ''}"
    return f"{text} ({count})" if text else f"({count})"


def _said_by(error: BaseException, most: int) -> str:
    try:
        return printable(str(error), most)
    except BaseException as raised:  # whatever an error's own text comes to
        return f"(its text cannot be made: {type(raised).__name__})"


def line_of(error: BaseException) -> str:
    """Its class and what it says, in one line."""
    text = one_line(error)
    return f"{short_class_of(error)}: {text}" if text else short_class_of(error)


def one_line(error: BaseException) -> str:
    """What it says, in one line."""
    return " ".join(text_of(error).split())


def logged_text_of(error: BaseException) -> str:
    """What a log may say of it, in one line: of an error of keylane's own what it gives for that, of a `Fatal` what it
    was made with, of others the status of an HTTP answer, if they have one."""
    if type(error) is Fatal:
        return one_line(error)
    if not isinstance(error, KeylaneError):
        status = _http_status(error)
        return "" if status is None else f"HTTP status {status}"
    try:
        return " ".join(printable(error.logged_text).split())
    except BaseException:  # of a class of the user's that derives from ours
        return ""


def logged_line_of(error: BaseException) -> str:
    """Its class, and what a log may say of it."""
    text = logged_text_of(error)
    return f"{short_class_of(error)}: {text}" if text else short_class_of(error)


def printable(text: str, most: int = MAX_TEXT) -> str:
    """Up to `most` characters, each of which has bytes and moves no cursor: others are as Python escapes them."""
    return visible(str.__getitem__(text, slice(most)), but="\n\t")
