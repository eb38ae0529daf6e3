"""What user code may raise, and what a client may give, that is awkward to tell: for tests of whoever tells of it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from keylane.records import PlainMessage

Spec = tuple[Any, ...]
"""A kind of error and what it is made of: plain values, which travel to any process."""


class SaysNothingError(Exception):
    def __str__(self) -> str:
        raise AttributeError("'NoneType' object has no attribute 'status'")

    __repr__ = __str__


class EndsWhoLooksError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class AsksByFailingError(Exception):
    @property
    def retry_after_ms(self) -> int:
        raise LookupError("no answer")


class AsksForEverError(Exception):
    def __getattr__(self, name: str) -> Any:
        return getattr(self, f"{name}_")


class NotAgainError(Exception):
    """It pickles, and cannot be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.two = two


class NeverPickledError(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("not me")


class HoldsALockError(Exception):
    def __init__(self, text: str) -> None:
        import threading

        super().__init__(text)
        self.lock = threading.Lock()


KINDS: dict[str, Any] = {
    "text": ValueError,
    "says nothing": SaysNothingError,
    "ends who looks": EndsWhoLooksError,
    "asks by failing": AsksByFailingError,
    "asks for ever": AsksForEverError,
    "never pickled": NeverPickledError,
    "a lock": HoldsALockError,
    "exit": SystemExit,
    "closed": GeneratorExit,
    "interrupt": KeyboardInterrupt,
}


def made(spec: Spec) -> BaseException:
    """The error of a spec."""
    kind, what = spec
    if kind == "group":
        return BaseExceptionGroup("several", [made(one) for one in what])
    if kind == "not again":
        return NotAgainError(1, 2)
    if kind == "huge":
        return ValueError("€" * what)
    if kind == "its own cause":
        error, cause = ValueError(what), KeyError(what)
        error.__cause__, cause.__cause__ = cause, error
        return error
    of_kind: BaseException = KINDS[kind](what)
    return of_kind


TEXTS = st.text(st.characters(), max_size=20)
"""Lone surrogates and control characters too."""

_ONE = (
    st.tuples(st.sampled_from([*KINDS]), TEXTS)
    | st.tuples(st.just("huge"), st.just(300_000))
    | st.tuples(st.just("its own cause"), TEXTS)
    | st.just(("not again", None))
)
SPECS: st.SearchStrategy[Spec] = st.recursive(
    _ONE, lambda inner: st.tuples(st.just("group"), st.lists(inner, min_size=1, max_size=3)), max_leaves=4
)

ALL: list[Spec] = [
    *((kind, "a \ud83d b \x1b[2J") for kind in KINDS),
    ("huge", 300_000),
    ("its own cause", "x"),
    ("not again", None),
    ("group", [("says nothing", "x"), ("group", [("not again", None)])]),
]


class RefusingMessage(PlainMessage):
    """A message that refuses its headers as confluent-kafka's does: once, with holes in what it gives after that."""

    __slots__ = ("_headers", "_was_asked")

    def headers(self) -> Any:
        if not getattr(self, "_was_asked", False):
            object.__setattr__(self, "_was_asked", True)
            object.__setattr__(self, "_headers", [("ok", b""), ()])
            raise SystemError("returned a result with an exception set")
        return getattr(self, "_headers")  # noqa: B009 - set by `object`

    def set_headers(self, headers: Any) -> None:
        object.__setattr__(self, "_headers", headers)
