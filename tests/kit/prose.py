"""The prose of the pages: `python -m kit.prose` names each sentence and line that is too long to be read at once.

What is counted are paragraphs and lists; code, tables, headings and what the harness writes are not. A piece of code
counts as a word, a link by its words.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MAX_WORDS = 45
MAX_LINE = 160

NOT_READ = (
    re.compile(r"<!-- [^>]*: written by the harness -->.*?<!-- end of [^>]*-->", re.DOTALL),
    re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]+`")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*`\"(0-9])")


def prose(text: str) -> str:
    """With as many lines as before."""
    for pattern in NOT_READ:
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def sentences(text: str) -> Iterator[str]:
    """Of paragraphs and items of lists, as they are read."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "|", "![")):
            blocks.append([])
        elif ITEM.match(line):
            blocks.append([ITEM.sub("", line)])
        else:
            blocks[-1].append(line)
    for block in blocks:
        yield from END.split(CODE.sub("`code`", LINK.sub(r"\1", " ".join(block))))


def faults(text: str) -> Iterator[str]:
    for one in sentences(text):
        if (words := sum(any(letter.isalnum() for letter in word) for word in one.split())) > MAX_WORDS:
            yield f"{words} words, and {MAX_WORDS} are the limit: {one[:60]} …"
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE and not line.lstrip().startswith(("|", "![", "- [")):
            yield f"line {number} has {len(line)} characters, and {MAX_LINE} are the limit"


def main() -> int:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{page.relative_to(ROOT)}: {fault}" for page in sorted(pages) for fault in faults(prose(page.read_text()))
    ]
    sys.stderr.writelines(f"prose: {line}\n" for line in found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
