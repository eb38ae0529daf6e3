"""The prose of the pages: `python -m kit.prose` checks it by the rules of docs/style.md, and names what breaks one.

- Sentences: none above `MAX_WORDS` words, `MAX_AVERAGE` a page on average. What is counted are paragraphs and lists;
  code, tables, headings and what the harness writes are not. A piece of code counts as a word, a link by its words.
- Lines: at most `MAX_LINE` characters in what is counted, but for an item of a list that begins with a link.
- Figures: a rate or a factor (`7,900 rec/s`, `3.2 ×`) stands on one page only, and elsewhere a link leads there. Pages
  of *Evidence*, decisions, which say what was known when they were made, and CHANGELOG.md may repeat them.
- Pages: each but README.md is linked from another one.

`EXCEPTIONS` lists pages that a rule does not hold for, each with its reason. One that is needless is an error, too.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[2]
MAX_WORDS = 45
MAX_AVERAGE = 25
MAX_LINE = 160

EVIDENCE = {
    "docs/benchmarks.md", "docs/performance.md", "docs/compatibility.md", "docs/reliability.md", "docs/scale.md",
}  # fmt: skip
"""Pages that figures come from."""
EXCEPTIONS: dict[tuple[str, str], str] = {}
"""(page, rule): why it is left out."""

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
WRITTEN = re.compile(r"<!-- [^>]*: written by the harness -->.*?<!-- end of [^>]*-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]+`")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*`\"(0-9])")
TARGET = re.compile(r"\]\(([^)#:]+\.md)[^)]*\)")
FIGURE = re.compile(r"(?<![\w.,])(\d[\d,.]*)\s?(rec/s|records/s|records a second|×)(?!\w)")


@dataclass(frozen=True)
class Finding:
    page: str
    rule: str
    says: str


def pages() -> dict[str, str]:
    """All of them, by their path from the root."""
    files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def without_code(text: str) -> str:
    """With as many lines as before."""
    for pattern in (WRITTEN, FENCE, COMMENT):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def sentences(text: str) -> list[str]:
    """Of paragraphs and items of lists, as they are read."""
    blocks: list[list[str]] = [[]]
    for line in without_code(text).splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "|", "![")):
            blocks.append([])
        elif ITEM.match(line):
            blocks.append([ITEM.sub("", line)])
        else:
            blocks[-1].append(line)
    whole = (CODE.sub("`code`", LINK.sub(r"\1", " ".join(block))) for block in blocks if block)
    return [one for block in whole for one in END.split(block)]


def words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def findings(texts: Mapping[str, str]) -> list[Finding]:
    found: list[Finding] = []
    for page, text in texts.items():
        read = sentences(text)
        counts = [words(one) for one in read]
        long = [(one, count) for one, count in zip(read, counts, strict=True) if count > MAX_WORDS]
        found += [Finding(page, "sentence", f"{count} words: {one[:60]} …") for one, count in long]
        if counts and (average := sum(counts) / len(counts)) > MAX_AVERAGE:
            found.append(Finding(page, "average", f"{average:.1f} words a sentence, and {MAX_AVERAGE} are the limit"))
        found += [Finding(page, "line", f"line {number} has {length} characters") for number, length in wide(text)]
    return found + repeated(texts) + unlinked(texts)


def wide(text: str) -> Iterable[tuple[int, int]]:
    """Numbers and lengths of lines that are too long."""
    for number, line in enumerate(without_code(text).splitlines(), 1):
        if len(line) > MAX_LINE and not line.lstrip().startswith(("|", "![", "- [")):
            yield number, len(line)


def repeated(texts: Mapping[str, str]) -> list[Finding]:
    """Figures on more than one page."""
    where: dict[str, list[str]] = {}
    for page, text in texts.items():
        if page not in EVIDENCE and page != "CHANGELOG.md" and not page.startswith("docs/adr/"):
            for figure in {f"{number} {unit}" for number, unit in FIGURE.findall(without_code(text))}:
                where.setdefault(figure, []).append(page)
    return [
        Finding(page, "figure", f"{figure} stands in {on[0]} too: link to the page that measured it")
        for figure, on in where.items()
        for page in on[1:]
    ]


def unlinked(texts: Mapping[str, str]) -> list[Finding]:
    """Pages that no other one leads to."""
    linked = {
        target
        for page, text in texts.items()
        for link in TARGET.findall(text)
        if (target := os.path.normpath(Path(page).parent / link)) != page
    }
    return [Finding(page, "page", "no other page links to it") for page in texts if page not in {*linked, "README.md"}]


def judged(found: Iterable[Finding], exceptions: Mapping[tuple[str, str], str]) -> list[str]:
    """What to tell: findings without an exception, and exceptions without a finding."""
    found = list(found)
    told = [f"{one.page}: {one.rule}: {one.says}" for one in found if (one.page, one.rule) not in exceptions]
    needed = {(one.page, one.rule) for one in found}
    return told + [
        f"{page}: {rule}: this exception is needless" for page, rule in exceptions if (page, rule) not in needed
    ]


def main() -> int:
    told = judged(findings(pages()), EXCEPTIONS)
    sys.stderr.writelines(f"prose: {line}\n" for line in told)
    return bool(told)


if __name__ == "__main__":
    sys.exit(main())
