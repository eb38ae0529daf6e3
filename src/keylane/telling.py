"""What errors, logs and reprs tell of a user's names and values: the name that is meant, no secret, and no payload.

The idea: a setting is shown by its name, and its value only where the name cannot be that of a secret. Keys, values and
headers of records are never shown: a record is named by topic, partition and offset, and what a function returned by
its type.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import re
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

HIDDEN = "(hidden)"

_SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|jaas|oauthbearer\.config|userinfo|user\.info|"
    r"private|(ssl|keystore)[._]?key([._]?pem)?$|\.pem$",
    re.IGNORECASE,
)
"""In the names of settings whose values nobody is told."""


class Log(Protocol):
    """Where pure parts tell what a user should know: a `logging.Logger` behind the methods that they use."""

    def debug(self, text: str, *values: object) -> None: ...
    def info(self, text: str, *values: object) -> None: ...
    def warning(self, text: str, *values: object) -> None: ...
    def error(self, text: str, *values: object) -> None: ...


def logger_of(name: str) -> logging.Logger:
    """The logger of this name. What a handler or a filter of the application raises while it takes a line ends nothing
    of keylane's: it goes to standard error, as do the errors of logging's own handlers (`logging.raiseExceptions`)."""
    logger = logging.getLogger(name)

    def handle(line: logging.LogRecord) -> None:
        try:
            type(logger).handle(logger, line)
        except Exception:
            logging.StreamHandler().handleError(line)

    setattr(logger, "handle", handle)  # noqa: B010, a method of one logger
    return logger


Made = TypeVar("Made", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


def visible(text: str, but: str = "") -> str:
    """Text that others may have written, for a terminal or a line of a log: each character that shows nothing by itself
    (a control character, a line's end, one that turns the direction of what follows) as Python escapes it, but for
    these."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in but else one.encode("unicode_escape").decode("ascii") for one in text
    )


def is_secret(name: str) -> bool:
    """Whether the value of a setting with this name may be a secret."""
    return _SECRET.search(name) is not None


def shown(name: str, value: object) -> str:
    """The value of a setting, for an error."""
    return HIDDEN if is_secret(name) else repr(value)


class ClientSettings(dict[str, Any]):
    """Settings for a client, whose repr hides the secrets among them."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {shown(str(name), value)}" for name, value in self.items()) + "}"


def near_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is nearest to this one, if one is near; `cutoff` is the likeness that it takes, up to 1."""
    by_lower_case = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean …?`; empty when no known name is near."""
    near = near_name(name, known)
    return f"did you mean {near}?" if near else ""


def by_name(
    function: Callable[P, R], what: str | None = None, renamed: Mapping[str, str] | None = None
) -> Callable[P, R]:
    """The same function, which answers an option that it does not have with the one that may be meant. `renamed` has
    what stands for other names."""
    names = {name: None for name in inspect.signature(function).parameters if name != "self"}
    called, now = what or getattr(function, "__name__", ""), renamed or {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= names.keys():
            name = next(one for one in kwargs if one not in names)
            hint = f"give {now[name]}" if name in now else did_you_mean(name, names) or f"it takes {', '.join(names)}"
            raise UsageError(f"{called} has no option {name!r}: {hint}")
        return function(*args, **kwargs)

    return call


def with_named_options(what: str | None = None, **renamed: str) -> Callable[[Made], Made]:
    """For a class whose constructor answers an option that it does not have with the one that may be meant. `renamed`
    has what stands for other names, `what` is how users call it if not by its own name."""

    def named(made: Made) -> Made:
        setattr(made, "__init__", by_name(vars(made)["__init__"], what or made.__name__, renamed))  # noqa: B010 - a method to mypy
        return made

    return named


def size_in_utf8(text: str) -> int | None:
    """How many bytes a text has; None for one that has none: it holds a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def kind_of(value: object) -> str:
    """What user code returned and should not have, by its type alone: it may be made of a record."""
    return f"a value of type {type(value).__name__}"


def number_or_kind(value: object) -> str:
    """The same, where a number was to be returned."""
    return repr(value) if isinstance(value, int | float) else kind_of(value)
