"""A function that returns a login's token (OAUTHBEARER), named by a text: where settings are texts, and travel.

The idea: the name travels, and each process imports the function where it is used. What can be wrong with it is said
where it is named, and where a process lacks it, in one line.
"""

from __future__ import annotations

import importlib
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.foreign_errors import line_of
from keylane.telling import kind_of, logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logger_of("keylane.kafka")

SETTING = "oauth_cb"
"""confluent-kafka's name for the function."""
BEYOND_SECONDS = 100_000_000_000
"""A token's end at or beyond this is not in seconds: they reach it in the year 5138, and milliseconds did in 1973."""


@dataclass(unsafe_hash=True)
class TokenFunction:
    """`module:function`, which is called as confluent-kafka calls its `oauth_cb`: with `sasl.oauthbearer.config`, for a
    token and its end in seconds since the epoch.

    Raises `UsageError` where there is no such function, also where it is unpickled.
    """

    name: str
    failure: str = field(default="", init=False, compare=False)
    """Why the last call gave no token; empty where it gave one."""

    def __post_init__(self) -> None:
        _imported(self.name)

    def __reduce__(self) -> tuple[type[TokenFunction], tuple[str]]:
        return TokenFunction, (self.name,)

    def __call__(self, config: str) -> Any:
        """The client hears that the function raised, and not what: so that is logged, and kept for who waits."""
        try:
            found = _imported(self.name)(config)
            _check(self.name, found)
        except Exception as error:
            self.failure = f"{SETTING}={self.name} gave no token: {line_of(error)}"
            logger.error("%s", self.failure)  # noqa: TRY400 - the traceback is of the user's code, and in each attempt
            raise
        self.failure = ""
        return found


def _imported(name: str) -> Callable[[str], Any]:
    module, _, attribute = name.strip().partition(":")
    if not module or not attribute:
        raise UsageError(f"{SETTING}={name!r}: give the function as module:function")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module's own code may raise anything
        raise UsageError(
            f"{SETTING}={name!r} cannot be imported on {socket.gethostname()} ({line_of(error)}): install the module "
            "there, or send it (spark-submit --py-files, SparkContext.addPyFile)"
        ) from None
    if not callable(found):
        raise UsageError(f"{SETTING}={name!r} is {kind_of(found)}: name a function that returns a token and its end")
    function: Callable[[str], Any] = found
    return function


def _check(name: str, found: Any) -> None:
    if not isinstance(found, tuple) or len(found) < 2:
        raise UsageError(f"{SETTING}={name!r} returned {kind_of(found)}: return (token, seconds since the epoch)")
    if found[1] >= BEYOND_SECONDS:
        raise UsageError(f"{SETTING}={name!r} says that its token ends at {found[1]}: give seconds, not milliseconds")
