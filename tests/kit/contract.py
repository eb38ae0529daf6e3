"""What contract tests have in common: every option by its name, which test is about which, and what happens to it when
the option is ignored."""

from __future__ import annotations

import inspect
from copy import copy
from dataclasses import MISSING, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import keylane as kl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

VALUES = (
    kl.Batch, kl.Threads, kl.Processes, kl.Transactional, kl.ExactlyOnce, kl.Partitions, kl.Commit, kl.External
)  # fmt: skip
"""Values that have options of their own; `Retries` and `Rates` are one option each here."""

Test = TypeVar("Test", bound="Callable[..., None]")


def leaf_names(value: type) -> list[str]:
    """The options of a value, each named by the class that has it."""
    owner = {name: one.__name__ for one in reversed(value.__mro__) for name in vars(one).get("__annotations__", ())}
    return [f"{owner[one.name]}.{one.name}" for one in fields(value)]


def leaves(options: Any) -> dict[str, object]:
    """Every option of a pipeline, or of a step, by its name."""
    found: dict[str, object] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        if isinstance(value, VALUES):
            found |= zip(leaf_names(type(value)), (getattr(value, name.name) for name in fields(value)), strict=True)
        else:
            found[one.name] = value
    return found


def other_than_usual(options: Any, usual: Any) -> set[str]:
    """The options that have another value here than they usually have."""
    given, known = leaves(options), leaves(usual)
    return {name for name in given | known if given.get(name) != known.get(name)}


HANG_S = 120.0
QUICK_S = 1.0
"""Where an option is ignored: longer than any limit that a case sets."""

INSTEAD: dict[str, Any] = {
    "Batch.size": 2,
    "ExactlyOnce.store": ":memory:",
    "External.start_offsets": lambda partitions: dict.fromkeys(partitions, 0),
    "retries": kl.Retries(max_attempts=1),
}
"""By option, a value as if nobody had given it: where there is no usual one, or where the usual retries take long."""


def ignore(name: str, options: Any, usual: Any) -> bool:
    """Make a pipeline, or a step, as if nobody had given it this option; whether somebody had."""
    if name not in other_than_usual(options, usual):
        return False
    if "." not in name:
        object.__setattr__(options, name, INSTEAD.get(name, getattr(usual, name)))
        return True
    for one in fields(options):
        value = getattr(options, one.name)
        if isinstance(value, VALUES) and name in leaf_names(type(value)):
            part = next(part for part in fields(value) if name.endswith(f".{part.name}"))
            without = copy(value)
            object.__setattr__(without, part.name, INSTEAD[name] if part.default is MISSING else part.default)
            object.__setattr__(options, one.name, without)
    return True


class Covered:
    """The options that some test is about."""

    def __init__(self, *part_of_every_test: str) -> None:
        self.options = set(part_of_every_test)

    def __call__(self, *options: str) -> Callable[[Test], Test]:
        """Says which options a test is about. It has to give each of them a value that is not the usual one."""
        self.options.update(options)

        def mark(test: Test) -> Test:
            test.covers = set(options)  # type: ignore[attr-defined]
            return test

        return mark

    def cases(self, module: ModuleType) -> list[Any]:
        """Each test of a module with each option that it is about."""
        tests = [one for one in vars(module).values() if hasattr(one, "covers")]
        found = [(test, option) for test in tests for option in sorted(test.covers)]
        return [pytest.param(*one, id=f"{one[0].__name__}-{one[1]}") for one in found]

    def missing(self, known: set[str], elsewhere: Mapping[str, str]) -> list[str]:
        """What is wrong with the options that tests are about: those `known` that no test is, and the other way round;
        `elsewhere`, below tests/, are the tests of those that show in no contract test."""
        wrong = [f"no test is about {name}" for name in sorted(known - self.options - elsewhere.keys())]
        wrong += [f"{name} is no option" for name in sorted((self.options | elsewhere.keys()) - known)]
        wrong += [f"{name} is here and elsewhere" for name in sorted(self.options & elsewhere.keys())]
        for place in elsewhere.values():
            file, _, test = place.partition("::")
            if f"def {test}(" not in (Path(__file__).parents[1] / file).read_text():
                wrong.append(f"there is no {place}")
        return wrong


def variants(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments that a test's parameters give it."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    sets = []
    for mark in marks:
        names = mark.args[0]
        several = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        values = [one if len(several) > 1 else (one,) for one in mark.args[1]]
        sets.append([dict(zip(several, one, strict=True)) for one in values])
    for chosen in product(*sets):
        yield {name: value for some in chosen for name, value in some.items()}


def fails_without(
    test: Callable[..., None],
    make_bench: Callable[[int], Any],
    fixture: Callable[[str], Any],
    *,
    also: tuple[type[Exception], ...] = (),
    has_control: bool = False,
) -> None:
    """Runs a test on benches whose pipelines, or steps, ignore an option: it has to fail in each variant that gives the
    option, and with `has_control` in one. It fails by what it asserts, by an error of keylane's that comes of it, or by
    `also`."""
    failing: tuple[type[BaseException], ...] = (AssertionError, pytest.fail.Exception, kl.KeylaneError, *also)
    shown = 0
    for number, arguments in enumerate(variants(test)):
        bench = make_bench(number)
        others = inspect.signature(test).parameters.keys() - arguments.keys() - {"bench"}
        try:
            test(bench, **arguments, **{name: fixture(name) for name in others})
        except failing:
            shown += bench.has_ignored
        else:
            assert has_control or not bench.has_ignored, f"{arguments}: it passes all the same"
    assert shown, "no step or pipeline was given it"
