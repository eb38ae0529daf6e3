"""Each recipe of docs/recipes.md runs, and prints what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keylane.testing
from keylane.records import Output
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
ADDRESS = "127.0.0.1:9092"
"""The broker of every recipe; the test puts its own in its place."""
ORDERS, CUSTOMERS, AMOUNTS = 200, 20, 50

RECIPES = {
    section.partition("\n")[0]: program
    for section in PAGE.read_text().split("\n## ")[1:]
    for program in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Of a broker that has the orders."""
    topics = {"orders": 2, "orders.priced": 2, "orders.dead": 1, "returns-eu": 1}
    with keylane.testing.broker(topics=topics) as broker:
        with filling(broker.bootstrap_servers) as producer:
            for number in range(ORDERS):
                key, value = b"customer-%d" % (number % CUSTOMERS), {"id": number, "amount": number % AMOUNTS}
                producer.produce(Output("orders", key, json.dumps(value).encode()))
            producer.produce(Output("returns-eu", b"customer-1", b"{}"))
        yield broker.bootstrap_servers


def test_there_are_many_and_each_says_what_it_prints() -> None:
    assert len(RECIPES) >= 20
    assert [title for title, program in RECIPES.items() if len(said(program)) != 1] == []


def said(program: str) -> list[str]:
    return re.findall(r"# → (.*)$", program, re.MULTILINE)


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_prints_what_the_page_says(
    title: str, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = RECIPES[title].replace(ADDRESS, servers)
    exec(compile(program, title, "exec"), {"__name__": "recipe"})
    assert capsys.readouterr().out.splitlines() == said(program)
