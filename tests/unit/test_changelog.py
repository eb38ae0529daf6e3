"""CHANGELOG.md stays readable: a version is a few sections of what a user can do, and no heap of lines."""

from __future__ import annotations

import re

from kit import house

MOST_LINES = 15
"""Items of one section."""
VERSION, SECTION, ITEM = re.compile(r"## (?!#)"), re.compile(r"### "), re.compile(r"- ")


def faults(text: str) -> list[str]:
    found: list[str] = []
    sections: dict[str, int] = {}
    section = None
    for line in text.splitlines():
        if VERSION.match(line):
            section = None
            sections.clear()
        elif SECTION.match(line):
            section = line
            if section in sections:
                found.append(f"two sections {section!r} of one version")
            sections[section] = 0
        elif ITEM.match(line) and section is None:
            found.append(f"of no section: {line}")
        elif ITEM.match(line) and section is not None:
            sections[section] += 1
            if sections[section] == MOST_LINES + 1:
                found.append(f"more than {MOST_LINES} items: {section}")
    return found


def test_a_version_is_a_few_sections_of_a_few_lines() -> None:
    assert faults((house.ROOT / "CHANGELOG.md").read_text()) == []


def test_a_heap_of_lines_is_noticed() -> None:
    many = "- one\n" * (MOST_LINES + 1)
    assert faults("## 1\n- one\n") == ["of no section: - one"]
    assert faults(f"## 1\n### A\n{many}") == [f"more than {MOST_LINES} items: ### A"]
    assert faults("## 2\n### A\n- one\n### A\n") == ["two sections '### A' of one version"]
    assert faults("## 2\n### A\n- one\n## 1\n### A\n- one\n") == []
