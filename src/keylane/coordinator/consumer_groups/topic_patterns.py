"""Regular expressions for topics, in RE2's syntax, matched in linear time.

Kafka has members' expressions matched by the broker with RE2/J, since an expression of a client must not be able to
keep the broker busy: Python's `re` can take exponential time. So the expression becomes an automaton here, whose states
are sets of places in the expression, and each character of a name is looked at once.

An expression matches when it matches the whole name. Names are ASCII, so characters beyond match nothing. What RE2
refuses is refused: look-around, back references, possessive and atomic groups.

Source: https://github.com/google/re2/wiki/Syntax; its sentences for errors.
"""

from __future__ import annotations

import functools
import string
from typing import NamedTuple

SIZE = 128
"""Characters that a name may have, and some more; a class is a number with a bit for each."""
ALL = (1 << SIZE) - 1
MAX_REPEAT = 1_000
"""RE2's."""
MAX_PLACES = 5_000
"""Of an expression, with its repetitions written out."""
MAX_STATES = 2_000
"""Of an automaton that are remembered at a time."""
MAX_DEPTH = 100
"""Of groups in groups."""


class PatternError(ValueError):
    """What is wrong with an expression."""


def _class(characters: str) -> int:
    return sum(1 << ord(one) for one in set(characters))


_WORD = _class(string.ascii_letters + string.digits + "_")
_DIGIT = _class(string.digits)
_SPACE = _class("\t\n\f\r ")
_PERL = {"d": _DIGIT, "D": ALL & ~_DIGIT, "w": _WORD, "W": ALL & ~_WORD, "s": _SPACE, "S": ALL & ~_SPACE}
_POSIX = {
    "alnum": _class(string.ascii_letters + string.digits),
    "alpha": _class(string.ascii_letters),
    "ascii": ALL,
    "blank": _class("\t "),
    "cntrl": _class("".join(map(chr, range(32))) + "\x7f"),
    "digit": _DIGIT,
    "graph": _class("".join(map(chr, range(33, 127)))),
    "lower": _class(string.ascii_lowercase),
    "print": _class("".join(map(chr, range(32, 127)))),
    "punct": _class(string.punctuation),
    "space": _class("\t\n\v\f\r "),
    "upper": _class(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": _class(string.hexdigits),
}
_UNICODE = {
    "L": _POSIX["alpha"], "Lu": _POSIX["upper"], "Ll": _POSIX["lower"], "N": _DIGIT, "Nd": _DIGIT,
    "Latin": _POSIX["alpha"], "P": _class("!\"#%&'()*,-./:;?@[\\]_{}"), "Pd": _class("-"), "Pc": _class("_"),
    "S": _class("$+<=>^`|~"), "Z": _class(" "), "Any": ALL,
}  # fmt: skip
"""Unicode's classes, as far as they hold ASCII characters; others hold none."""
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}

START, END, BOUNDARY, NO_BOUNDARY = "^", "$", "b", "B"


class Characters(NamedTuple):
    """One character of a class."""

    mask: int


class Assertion(NamedTuple):
    """Holds between two characters."""

    kind: str


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    options: tuple[Node, ...]


class Repeat(NamedTuple):
    node: Node
    least: int
    most: int | None


Node = Characters | Assertion | Sequence | Choice | Repeat


class _Flags(NamedTuple):
    ignores_case: bool = False
    dot_is_all: bool = False


class _Parser:
    """Recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        node, _ = self._choice(_Flags())
        if self._at < len(self._text):
            raise PatternError("unexpected )")
        return node

    def _next(self, text: str) -> bool:
        """Whether this comes next; then it is read."""
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _take(self, otherwise: str) -> str:
        if self._at >= len(self._text):
            raise PatternError(otherwise)
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self, flags: _Flags) -> tuple[Node, _Flags]:
        options: list[Node] = []
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._next("|"):
                options.append(Sequence(tuple(parts)))
                parts = []
                continue
            if self._text.startswith("(?", self._at) and (found := self._flags_alone(flags)) is not None:
                flags = found  # they hold for the rest of the group
                continue
            if self._next("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                parts += [_literal(one, flags) for one in quoted]
                self._at += len(quoted) + 2
                continue
            parts.append(self._repeats(self._atom(flags)))
        options.append(Sequence(tuple(parts)))
        return (options[0] if len(options) == 1 else Choice(tuple(options))), flags

    def _atom(self, flags: _Flags) -> Node:
        one = self._take("missing argument")
        if one == "(":
            return self._group(flags)
        if one == "[":
            return self._bracket(flags)
        if one == ".":
            return Characters(ALL if flags.dot_is_all else ALL & ~_class("\n"))
        if one in "^$":
            return Assertion(one)
        if one in "*+?":
            raise PatternError("missing argument to repetition operator")
        if one == "\\":
            return self._escape(flags)
        return _literal(one, flags)

    def _group(self, flags: _Flags) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError("expression nests too deeply")
        if self._next("?"):
            if self._next("P<") or (self._next("<") and self._text[self._at : self._at + 1] not in ("=", "!")):
                name, found, _ = self._text[self._at :].partition(">")
                if not found or not name.isidentifier() or not name.isascii():
                    raise PatternError("invalid named capture")
                if name in self._names:
                    raise PatternError("duplicate capture group name")
                self._names.add(name)
                self._at += len(name) + 1
            elif not self._next(":"):
                flags = self._read_flags(flags, ":")
        node, _ = self._choice(flags)
        if not self._next(")"):
            raise PatternError("missing closing )")
        self._depth -= 1
        return node

    def _flags_alone(self, flags: _Flags) -> _Flags | None:
        """`(?i)`; None for a group."""
        end = self._at + 2
        while end < len(self._text) and self._text[end] in "imsU-":
            end += 1
        if end == self._at + 2 or self._text[end : end + 1] != ")":
            return None
        self._at += 2
        return self._read_flags(flags, ")")

    def _read_flags(self, flags: _Flags, end: str) -> _Flags:
        is_on, any_read = True, False
        while not self._next(end):
            one = self._take("missing closing )")
            if one == "-" and is_on:
                is_on, any_read = False, False
                continue
            if one not in "imsU":
                raise PatternError("invalid or unsupported Perl syntax")
            any_read = True
            if one == "i":
                flags = flags._replace(ignores_case=is_on)
            elif one == "s":
                flags = flags._replace(dot_is_all=is_on)
            # Names have one line, and a whole match is the same greedy or not.
        if not any_read:
            raise PatternError("invalid or unsupported Perl syntax")
        return flags

    def _repeats(self, node: Node) -> Node:
        is_repeated = False
        while self._at < len(self._text):
            bounds = self._bounds()
            if bounds is None:
                break
            if is_repeated:
                raise PatternError("invalid nested repetition operator")
            node, is_repeated = Repeat(node, *bounds), True
            self._next("?")  # as few as may be: the same for a whole match
        return node

    def _bounds(self) -> tuple[int, int | None] | None:
        for text, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next(text):
                return bounds
        if not self._text.startswith("{", self._at):
            return None
        inside, found, _ = self._text[self._at + 1 :].partition("}")
        first, comma, last = inside.partition(",")
        if not found or not first.isdecimal() or (last and not last.isdecimal()):
            return None  # a brace like any other character
        self._at += len(inside) + 2
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            raise PatternError("invalid repeat count")
        return least, most

    def _escape(self, flags: _Flags) -> Node:
        one = self._take("trailing backslash at end of expression")
        if one in "bB":
            return Assertion(one)
        if one in "Az":
            return Assertion(START if one == "A" else END)
        if one in _PERL:
            return Characters(_PERL[one])
        if one in "pP":
            return Characters(self._unicode(is_not=one == "P"))
        if one == "C":
            return Characters(ALL)
        return _literal(self._escaped(one), flags)

    def _escaped(self, one: str) -> str:
        if one in _CONTROLS:
            return _CONTROLS[one]
        if one == "x":
            if self._next("{"):
                digits, found, _ = self._text[self._at :].partition("}")
                self._at += len(digits) + 1
            else:
                digits, found = self._text[self._at : self._at + 2], "}"
                self._at += 2
            if not found or not digits or set(digits) - set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
                raise PatternError("invalid escape sequence")
            return chr(int(digits, 16))
        if one in "01234567":
            digits = one
            while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._take("")
            if one != "0" and len(digits) == 1:  # a back reference
                raise PatternError("invalid escape sequence")
            return chr(int(digits, 8))
        if one.isascii() and one.isalnum():
            raise PatternError("invalid escape sequence")
        return one

    def _unicode(self, *, is_not: bool) -> int:
        name = self._take("invalid character class range")
        if name == "{":
            name, found, _ = self._text[self._at :].partition("}")
            if not found:
                raise PatternError("invalid character class range")
            self._at += len(name) + 1
        is_not ^= name.startswith("^")
        name = name.removeprefix("^")
        if not name.isalpha() and "_" not in name:
            raise PatternError("invalid character class range")
        mask = _UNICODE.get(name, 0)
        return ALL & ~mask if is_not else mask

    def _bracket(self, flags: _Flags) -> Node:
        is_not = self._next("^")
        mask, is_first = 0, True
        while is_first or not self._next("]"):
            is_first = False
            if self._next("[:"):
                name, found, _ = self._text[self._at :].partition(":]")
                known = _POSIX.get(name.removeprefix("^"))
                if not found or known is None:
                    raise PatternError("invalid character class range")
                self._at += len(name) + 2
                mask |= ALL & ~known if name.startswith("^") else known
                continue
            low = self._one_in_bracket()
            if isinstance(low, int):
                mask |= low
                continue
            high = low
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                found_high = self._one_in_bracket()
                if isinstance(found_high, int) or found_high < low:
                    raise PatternError("invalid character class range")
                high = found_high
            for code in range(ord(low), min(ord(high), SIZE - 1) + 1):
                mask |= _literal(chr(code), flags).mask
        return Characters(ALL & ~mask if is_not else mask)

    def _one_in_bracket(self) -> str | int:
        """A character, or a class."""
        one = self._take("missing closing ]")
        if one != "\\":
            return one
        one = self._take("trailing backslash at end of expression")
        if one in _PERL:
            return _PERL[one]
        if one in "pP":
            return self._unicode(is_not=one == "P")
        return self._escaped(one)


def _literal(one: str, flags: _Flags) -> Characters:
    cases = {one, one.lower(), one.upper()} if flags.ignores_case else {one}
    return Characters(sum(1 << ord(case) for case in cases if len(case) == 1 and ord(case) < SIZE))


class _Places:
    """The places of an expression: from each, by a character of a class or by nothing, to others."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int] | None] = []
        """By place: a class of characters, and where they lead."""
        self.jumps: list[list[tuple[str, int]]] = []
        """By place: where it goes on without a character, and what must hold there ("" for nothing)."""

    def new(self) -> int:
        if len(self.steps) >= MAX_PLACES:
            raise PatternError("expression is too large")
        self.steps.append(None)
        self.jumps.append([])
        return len(self.steps) - 1

    def add(self, node: Node, start: int) -> int:
        """Lay out a node from a place on; where it ends."""
        end = self.new()
        match node:
            case Characters(mask):
                self.steps[start] = (mask, end)
            case Assertion(kind):
                self.jumps[start].append((kind, end))
            case Sequence(parts):
                at = start
                for part in parts:
                    at = self.add(part, at)
                self.jumps[at].append(("", end))
            case Choice(options):
                for option in options:
                    begin = self.new()
                    self.jumps[start].append(("", begin))
                    self.jumps[self.add(option, begin)].append(("", end))
            case Repeat(part, least, most):
                self._repeat(part, least, most, start, end)
        return end

    def _repeat(self, part: Node, least: int, most: int | None, start: int, end: int) -> None:
        at = start
        for _ in range(least):
            at = self.add(part, at)
        if most is None:
            turn = self.new()
            self.jumps[at].append(("", turn))
            begin = self.new()
            self.jumps[turn] += [("", begin), ("", end)]
            self.jumps[self.add(part, begin)].append(("", turn))
            return
        for _ in range(most - least):
            self.jumps[at].append(("", end))
            begin = self.new()
            self.jumps[at].append(("", begin))
            at = self.add(part, begin)
        self.jumps[at].append(("", end))


_State = tuple[frozenset[int], str]
"""Places, and the character before them ("" at the start)."""


class TopicPattern:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        self._places = _Places()
        self._start: _State = (frozenset({self._places.new()}), "")
        self._end = self._places.add(_Parser(text).parse(), 0)
        self._known: dict[tuple[_State, str], _State] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        state = self._start
        for one in name:
            following = self._known.get((state, one))
            if following is None:
                following = self._step(state, one)
                if len(self._known) >= MAX_STATES:
                    self._known.clear()
                self._known[state, one] = following
            if not following[0]:
                return False
            state = following
        return self._end in self._reach(state, "")

    def _step(self, state: _State, one: str) -> _State:
        bit = 1 << ord(one) if ord(one) < SIZE else 0
        steps = (self._places.steps[place] for place in self._reach(state, one))
        before = "a" if _is_word(one) else "-"  # all that an assertion asks of it
        return frozenset(step[1] for step in steps if step is not None and step[0] & bit), before

    def _reach(self, state: _State, following: str) -> set[int]:
        """All places that are reached without a character."""
        places, before = state
        is_boundary = _is_word(before) != _is_word(following)
        holds = {"": True, START: not before, END: not following, BOUNDARY: is_boundary, NO_BOUNDARY: not is_boundary}
        found, open_places = set(places), list(places)
        while open_places:
            for condition, place in self._places.jumps[open_places.pop()]:
                if holds[condition] and place not in found:
                    found.add(place)
                    open_places.append(place)
        return found


def _is_word(one: str) -> bool:
    return bool(one) and ord(one) < SIZE and bool(_WORD >> ord(one) & 1)


@functools.lru_cache(maxsize=64)
def compile_pattern(text: str) -> TopicPattern:
    """Raises `PatternError`."""
    return TopicPattern(text)
