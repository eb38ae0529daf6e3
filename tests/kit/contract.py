"""What contract tests have in common: every option by its name, and which test is about which."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import keylane as kl

if TYPE_CHECKING:
    from collections.abc import Callable

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
