"""Kinds of faults. Each is aimed at what a function mentions: a name, an attribute, or a string.

`words` are one name or several. A statement, condition or comparison is hit when it mentions all of them and nothing
inside it does so too. Everything in the function that is hit is changed. In an expression that comes instead of
another one, `_` is the other one: `instead("base", "_ + 1")`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Kind = Callable[["Place"], bool]
OPERATORS: dict[str, type[ast.cmpop]] = {
    "==": ast.Eq,
    "!=": ast.NotEq,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A change to the code of a function, class or constant."""

    name: str
    """As the mutant has it: `drop('sync')`."""
    apply: Callable[[ast.AST], int]
    """Changes the code, and returns in how many places."""
    texts: tuple[str, ...] = ()
    """Code that it brings along."""


class Place(NamedTuple):
    """Where a node stands in its parent."""

    parent: ast.AST
    field: str
    number: int | None
    node: ast.AST

    def put(self, *nodes: ast.AST) -> None:
        if self.number is None:
            (node,) = nodes
            setattr(self.parent, self.field, node)
        else:
            row = getattr(self.parent, self.field)
            at = next(number for number, one in enumerate(row) if one is self.node)
            row[at : at + 1] = nodes


def drop(words: str) -> Fault:
    """The statement does not run."""
    return _changed(f"drop({words!r})", words, _is_statement, lambda _: [ast.Pass()])


def never(words: str) -> Fault:
    """The condition does not hold."""
    return _changed(f"never({words!r})", words, _is_condition, lambda _: [ast.Constant(value=False)])


def always(words: str) -> Fault:
    """The condition holds."""
    return _changed(f"always({words!r})", words, _is_condition, lambda _: [ast.Constant(value=True)])


def negate(words: str) -> Fault:
    """The condition holds when it should not, and the other way round."""

    def negated(place: Place) -> list[ast.AST]:
        return [ast.UnaryOp(ast.Not(), _expression(place.node))]

    return _changed(f"negate({words!r})", words, _is_condition, negated)


def compare(words: str, operator: str) -> Fault:
    """The comparison has another operator."""

    def compared(place: Place) -> list[ast.AST]:
        assert isinstance(place.node, ast.Compare)
        return [ast.Compare(place.node.left, [OPERATORS[operator]()], place.node.comparators)]

    return _changed(f"compare({words!r}, {operator!r})", words, _is_comparison, compared)


def instead(word: str, text: str) -> Fault:
    """Another expression stands for this name or attribute; or for what a call returns: `instead("span()", "0")`."""
    name = word.removesuffix("()")
    kind = _is_call_of(name) if word != name else _is_use_of(name)
    return _changed(f"instead({word!r}, {text!r})", name, kind, lambda place: [_filled(text, place.node)], text)


def argument(function: str, which: int | str, text: str) -> Fault:
    """A call gets another argument; one more where it does not have it yet."""

    def given(place: Place) -> list[ast.AST]:
        call = place.node
        assert isinstance(call, ast.Call)
        if isinstance(which, int):
            call.args[which] = _filled(text, call.args[which])
        else:
            for one in call.keywords:
                if one.arg == which:
                    one.value = _filled(text, one.value)
                    break
            else:
                call.keywords.append(ast.keyword(which, ast.parse(text, mode="eval").body))
        return [call]

    def has_it(place: Place) -> bool:
        return _is_call_of(function)(place) and (isinstance(which, str) or which < len(place.node.args))  # type: ignore[attr-defined]

    return _changed(f"argument({function!r}, {which!r}, {text!r})", function, has_it, given, text)


def value_of(name: str, text: str) -> Fault:
    """Another value is assigned to this name or attribute, or stands in a dictionary under it."""

    def apply(root: ast.AST) -> int:
        found = list(_values_of(name, root))
        for place in found:
            place.put(_filled(text, place.node))
        return len(found)

    return Fault(f"value_of({name!r}, {text!r})", apply, (text,))


def answer(text: str) -> Fault:
    """The function returns another value; `_` is what it would return."""

    def filled(place: Place) -> list[ast.AST]:
        assert isinstance(place.node, ast.Return)
        return [ast.Return(_filled(text, place.node.value or ast.Constant(value=None)))]

    return _changed(f"answer({text!r})", "", lambda place: isinstance(place.node, ast.Return), filled, text)


def begin(text: str) -> Fault:
    """The function does something else first."""

    def apply(root: ast.AST) -> int:
        assert isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef), "only a function begins"
        first = 1 if ast.get_docstring(root) else 0
        root.body[first:first] = _statements(text)
        return 1

    return Fault(f"begin({text!r})", apply, (text,))


def before(words: str, text: str) -> Fault:
    """Something else is done before the statement."""
    return _changed(
        f"before({words!r}, {text!r})", words, _is_statement, lambda place: [*_statements(text), place.node], text
    )


def after(words: str, text: str) -> Fault:
    """Something else is done after the statement."""
    return _changed(
        f"after({words!r}, {text!r})", words, _is_statement, lambda place: [place.node, *_statements(text)], text
    )


def both(first: Fault, second: Fault) -> Fault:
    """Two changes that are one fault."""

    def apply(root: ast.AST) -> int:
        return min(first.apply(root), second.apply(root))

    return Fault(f"both({first.name}, {second.name})", apply, (*first.texts, *second.texts))


def mentions(node: ast.AST) -> set[str]:
    """Names, attributes and strings."""
    return {
        name
        for one in ast.walk(node)
        for name in (getattr(one, "id", None), getattr(one, "attr", None), getattr(one, "arg", None), _text(one))
        if isinstance(name, str)
    }


def places(root: ast.AST) -> Iterator[Place]:
    """All of them, from the outermost on."""
    for field, value in ast.iter_fields(root):
        row = value if isinstance(value, list) else [value]
        for index, node in enumerate(row):
            if isinstance(node, ast.AST):
                yield Place(root, field, index if isinstance(value, list) else None, node)
                yield from places(node)


def _changed(name: str, words: str, fits: Kind, change: Callable[[Place], list[ast.AST]], text: str = "") -> Fault:
    names = set(words.split())

    def apply(root: ast.AST) -> int:
        hit = [place for place in places(root) if fits(place) and names <= mentions(place.node)]
        inner = [one for one in hit if not any(other is not one and _is_in(other, one) for other in hit)]
        for place in inner:
            place.put(*change(place))
        return len(inner)

    return Fault(name, apply, (text,) if text else ())


def _is_in(inner: Place, outer: Place) -> bool:
    return any(node is inner.node for node in ast.walk(outer.node) if node is not outer.node)


def _is_statement(place: Place) -> bool:
    return isinstance(place.node, ast.stmt)


def _is_comparison(place: Place) -> bool:
    return isinstance(place.node, ast.Compare) and len(place.node.ops) == 1


def _is_condition(place: Place) -> bool:
    if isinstance(place.node, ast.Compare | ast.UnaryOp) and not isinstance(place.parent, ast.UnaryOp):
        return isinstance(place.node, ast.Compare) or isinstance(place.node.op, ast.Not)
    return place.field in ("test", "ifs", "guard") or isinstance(place.parent, ast.BoolOp)


def _is_use_of(name: str) -> Kind:
    return lambda place: (
        isinstance(place.node, ast.Name | ast.Attribute)
        and isinstance(place.node.ctx, ast.Load)
        and (place.node.id if isinstance(place.node, ast.Name) else place.node.attr) == name
    )


def _is_call_of(name: str) -> Kind:
    return lambda place: (
        isinstance(place.node, ast.Call)
        and (getattr(place.node.func, "id", None) or getattr(place.node.func, "attr", None)) == name
    )


def _values_of(name: str, root: ast.AST) -> Iterator[Place]:
    for node in (root, *(place.node for place in places(root))):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value and any(name == _target(one) for one in targets):
                yield Place(node, "value", None, node.value)
        elif isinstance(node, ast.Dict):
            yield from (
                Place(node, "values", index, node.values[index])
                for index, key in enumerate(node.keys)
                if key is not None and name in (_text(key), _target(key))
            )


def _target(node: ast.AST) -> str | None:
    if isinstance(node, ast.Subscript):
        return _target(node.value)
    return getattr(node, "id", None) or getattr(node, "attr", None)


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _expression(node: ast.AST) -> ast.expr:
    assert isinstance(node, ast.expr)
    return node


def _filled(text: str, was: ast.AST) -> ast.expr:
    """The expression, with what was there in place of `_`."""

    class Filler(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(was) if node.id == "_" else node

    return _expression(Filler().visit(ast.parse(text, mode="eval").body))
