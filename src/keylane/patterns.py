r"""Topics by pattern: what an expression means, which is the same for keylane, for its client and for every broker.

The idea: three machines read it. keylane asks which topics there are (Python's `re`), the client does under the classic
group protocol (POSIX), and the broker under KIP-848's (RE2). Each knows forms that the others read otherwise, or do not
know. So an expression is of what all three read alike, it is about the whole name, and it goes to them without a
backslash, which librdkafka would put into its statistics as it is. Anything else is refused, with what to write.

    expression  =  "^" body ["$"]
    body        =  branch *( "|" branch )
    branch      =  1*( atom [ "*" / "+" / "?" / "{n}" / "{n,}" / "{n,m}" ] )
    atom        =  a character of a topic's name / "." / "\." / "[" ["^"] characters and ranges "]" / "(" body ")"

Topics whose names begin with `__` are internal ones: no pattern matches them, as with Java's consumer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from keylane.errors import UsageError

INTERNAL = "__"
"""What the names of internal topics begin with."""

MAX_REPEATS = 255
"""What POSIX promises to take in braces."""

MAX_DEPTH = 50
"""Parentheses in parentheses."""

_NAME = re.compile(r"[A-Za-z0-9_-]")
_ALNUM = re.compile(r"[A-Za-z0-9]")
_REPEATS = re.compile(r"\{(\d{1,3})(,(\d{1,3})?)?\}")
_SHORTHANDS = {
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[A-Za-z0-9_]",
    r"\W": "[.-]",
    r"\s": "nothing: no topic's name has a space",
    "(?:": "(",
    "[:alpha:]": "A-Za-z",
    "[:alnum:]": "A-Za-z0-9",
    "[:digit:]": "0-9",
    "[:lower:]": "a-z",
    "[:upper:]": "A-Z",
}
"""What some read, and what to write in its place."""


def is_pattern(topic: str) -> bool:
    """Whether an entry of `topics` is an expression and no name."""
    return topic.startswith("^")


def matches(expression: str, topic: str) -> bool:
    """Whether the expression is about this topic. Raises `UsageError` for one that is none."""
    return not topic.startswith(INTERNAL) and _compiled(expression).fullmatch(topic) is not None


def is_read(topics: tuple[str, ...], topic: str) -> bool:
    """Whether these names and expressions have this topic."""
    return topic in topics or any(matches(one, topic) for one in topics if is_pattern(one))


def for_clients(expression: str) -> str:
    """The expression as clients and brokers get it: it matches whole names whether they search or match."""
    return f"^({_compiled(expression).pattern})$"


@lru_cache(1_000)
def _compiled(expression: str) -> re.Pattern[str]:
    """Raises `UsageError`."""
    return re.compile(_Reader(expression).body())


class _Reader:
    """Reads an expression from its start to its end."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        text = expression.removeprefix("^")
        self._text = text.removesuffix("$") if not text.endswith("\\$") else text
        self._at = 0

    def body(self) -> str:
        """The whole, without its anchors and backslashes."""
        found = self._branches(0)
        if self._at < len(self._text):
            raise self._refused(")", "without one that opens: take it out")
        return found

    def _branches(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise self._refused("(", f"{MAX_DEPTH} deep: write it with fewer")
        found = [self._branch(depth)]
        while self._next() == "|":
            self._at += 1
            found.append(self._branch(depth))
        return "|".join(found)

    def _branch(self, depth: int) -> str:
        found = ""
        while self._next() not in ("", "|", ")"):
            found += self._atom(depth) + self._repeats()
        if not found:
            raise self._refused(self._next() or "nothing", "where something should be: write what it is")
        return found

    def _atom(self, depth: int) -> str:
        one = self._next()
        self._refuse_shorthands()
        if _NAME.match(one) or one == ".":
            self._at += 1
            return one
        if self._text.startswith(r"\.", self._at):
            self._at += 2
            return "[.]"
        if one == "[":
            return self._characters()
        if one == "(":
            self._at += 1
            found = self._branches(depth + 1)
            if self._next() != ")":
                raise self._refused("(", "without one that closes: add it")
            self._at += 1
            return f"({found})"
        if one in "^$":
            raise self._refused(one, "inside: an expression is about the whole name; give several as a list")
        if one in "*+?{":
            raise self._refused(one, "without something before it that is repeated: take it out")
        raise self._refused(one, r"which no topic's name has: names have A-Z, a-z, 0-9, _, - and ., which is \.")

    def _characters(self) -> str:
        """Between brackets."""
        end = self._text.find("]", self._at + 1)
        inner = self._text[self._at + 1 : end] if end >= 0 else ""
        self._refuse_shorthands(end)
        negated = inner.startswith("^")
        listed = inner.removeprefix("^").replace(r"\.", ".").replace(r"\-", "-") if negated or inner else ""
        if not listed:
            raise self._refused("[", "without a character and a ] that closes it: write those that it may be")
        literal = re.sub(r"([A-Za-z0-9])-([A-Za-z0-9])", "", listed)
        for first, last in re.findall(r"([A-Za-z0-9])-([A-Za-z0-9])", listed):
            if first > last or not _alike(first, last):
                raise self._refused(f"{first}-{last}", "which is no range: write one of A-Z, a-z or 0-9, or a part")
        if not re.fullmatch(r"-?[A-Za-z0-9_.]*-?", literal) or literal == "--":
            raise self._refused(
                f"[{inner}]", "which not all read alike: write letters, digits, _, . and ranges, - last"
            )
        self._at = end + 1
        return f"[{'^' if negated else ''}{listed}]"

    def _repeats(self) -> str:
        """What says how often."""
        found = _REPEATS.match(self._text, self._at)
        if found is not None:
            least, most = int(found[1]), int(found[3]) if found[3] else None
            if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
                raise self._refused(found[0], f"which not all take: write numbers up to {MAX_REPEATS}, the lower first")
            self._at = found.end()
            sign = found[0]
        elif (sign := self._next()) in ("*", "+", "?"):
            self._at += 1
        elif sign == "{":
            raise self._refused("{", "which is no number of times: write {2}, {2,} or {2,3}")
        else:
            return ""
        if (again := self._next()) in ("*", "+", "?", "{") and again:
            raise self._refused(sign + again, f"which is read in several ways: write {sign}")
        return sign

    def _refuse_shorthands(self, end: int | None = None) -> None:
        for shorthand, instead in _SHORTHANDS.items():
            is_here = shorthand in self._text[self._at : end + 1] if end is not None and end >= 0 else False
            if is_here or self._text.startswith(shorthand, self._at):
                raise self._refused(shorthand, f"which not all know: write {instead}")
        if self._text.startswith("(?", self._at):
            raise self._refused("(?", "which not all know: write the expression without it, or several as a list")
        if self._text.startswith("\\", self._at) and not self._text.startswith(r"\.", self._at):
            raise self._refused(self._text[self._at : self._at + 2], r"which not all know: only \. is known to all")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _refused(self, what: str, why: str) -> UsageError:
        return UsageError(f"{self._expression!r} has {what} at character {self._at + 1}, {why}")


def _alike(first: str, last: str) -> bool:
    return any(re.fullmatch(kind, first + last) for kind in ("[A-Z]{2}", "[a-z]{2}", "[0-9]{2}"))
