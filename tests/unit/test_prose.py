"""The pages keep the rules of docs/style.md, and each rule finds what is planted."""

from __future__ import annotations

import re

import pytest

from kit import prose

SHORT = "These are ten words that nobody has to read twice.\n"
FILL = SHORT * 4


def rules(text: str, **others: str) -> list[str]:
    """Of what is found on a page that README.md links to."""
    texts = {"README.md": "[it](docs/it.md)", "docs/it.md": text, **others}
    return [one.rule for one in prose.findings(texts) if one.page == "docs/it.md"]


def test_the_pages_keep_the_rules() -> None:
    assert prose.judged(prose.findings(prose.pages()), prose.EXCEPTIONS) == []


def test_the_style_page_gives_the_limits() -> None:
    said = re.findall(r"^\| [^|]+ \| (\d+) at most", (prose.ROOT / "docs" / "style.md").read_text(), re.MULTILINE)
    assert [int(one) for one in said] == [prose.MAX_WORDS, prose.MAX_AVERAGE, prose.MAX_LINE]


def long(words: int) -> str:
    return f"W {'w ' * (words - 2)}w.\n"


TOO_LONG = long(prose.MAX_WORDS + 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FILL + long(prose.MAX_WORDS), []),
        (FILL + TOO_LONG, ["sentence"]),
        (f"{FILL}\n- {SHORT}- {TOO_LONG}", ["sentence"]),
        (long(prose.MAX_AVERAGE), []),
        (long(prose.MAX_AVERAGE + 1), ["average"]),
        (f"{SHORT}`a` begins one. `b` begins another.\n", []),
        (f"{SHORT}```\n{TOO_LONG}```\n| {TOO_LONG}", []),
        (f"{SHORT}{'x' * (prose.MAX_LINE + 1)}", ["line"]),
        (f"{SHORT}- [{'x' * prose.MAX_LINE}](it.md)", []),
        (f"<!-- rows: written by the harness -->\n{TOO_LONG}\n<!-- end of rows -->\n", []),
    ],
)
def test_what_breaks_a_rule_of_a_page_is_found(text: str, found: list[str]) -> None:
    assert rules(text) == found


def test_a_figure_stands_on_one_page_but_for_those_that_it_comes_from() -> None:
    texts = dict.fromkeys(("README.md", "docs/it.md", "docs/benchmarks.md"), "It does 1,234 rec/s here.")
    assert [(one.page, one.rule) for one in prose.repeated(texts)] == [("docs/it.md", "figure")]
    assert prose.repeated({**texts, "docs/it.md": "It does 1,235 rec/s here."}) == []


def test_a_page_that_nobody_links_to_is_found() -> None:
    texts = {"README.md": "[a](docs/a.md#there)", "docs/a.md": "", "docs/b.md": "[b](b.md)"}
    assert [one.page for one in prose.unlinked(texts)] == ["docs/b.md"]


def test_an_exception_counts_while_it_is_needed() -> None:
    found = [prose.Finding("docs/it.md", "line", "long")]
    assert prose.judged(found, {}) == ["docs/it.md: line: long"]
    assert prose.judged(found, {("docs/it.md", "line"): "a reason"}) == []
    assert prose.judged([], {("docs/it.md", "line"): "a reason"}) == ["docs/it.md: line: this exception is needless"]
