"""CHANGELOG.md stays readable: a version is a few sections of what a user can do, and no heap of lines."""

from __future__ import annotations

from collections import Counter

from kit import house

MOST_LINES = 15
"""Items of one section."""


def faults(text: str) -> list[str]:
    found: list[str] = []
    for version in f"\n{text}".split("\n## "):
        loose, *sections = version.split("\n### ")
        names = ["### " + section.partition("\n")[0] for section in sections]
        found += [f"of no section: {line}" for line in items(loose)]
        found += [f"two sections {name!r} of one version" for name, count in Counter(names).items() if count > 1]
        found += [
            f"more than {MOST_LINES} items: {name}"
            for name, section in zip(names, sections, strict=True)
            if len(items(section)) > MOST_LINES
        ]
    return found


def items(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- ")]


def test_a_version_is_a_few_sections_of_a_few_lines() -> None:
    assert faults((house.ROOT / "CHANGELOG.md").read_text()) == []


def test_a_heap_of_lines_is_noticed() -> None:
    many = "- one\n" * (MOST_LINES + 1)
    assert faults("## 1\n- one\n") == ["of no section: - one"]
    assert faults(f"## 1\n### A\n{many}") == [f"more than {MOST_LINES} items: ### A"]
    assert faults("## 2\n### A\n- one\n### A\n") == ["two sections '### A' of one version"]
    assert faults("## 2\n### A\n- one\n## 1\n### A\n- one\n") == []
