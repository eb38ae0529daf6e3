"""docs/offset-store.md says what the code does, where it can be compared."""

import re
from pathlib import Path

from keylane.coordinator.groups.states import diagram
from keylane.coordinator.journal.headers import HEADER_SIZE, SEGMENT, encode_header

PAGE = Path(__file__).parents[3] / "docs" / "offset-store.md"


def test_the_diagram_of_states_is_the_table() -> None:
    assert diagram() in PAGE.read_text()


def test_the_segment_header_is_as_the_page_says() -> None:
    header = encode_header(SEGMENT, 7, 50)
    assert f"Segment header, {HEADER_SIZE} bytes" in PAGE.read_text()
    assert header[:16] == SEGMENT.magic == b"keylane journal\0"
    assert header[16:32] == (2).to_bytes(4, "big") + (7).to_bytes(8, "big") + (50).to_bytes(4, "big")
    assert len(header) == HEADER_SIZE


def test_the_tests_that_the_page_names_are_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 30
    tests = Path(__file__).parents[2]
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(|^{name} = ", (tests / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_the_pages_that_the_page_names_are_there() -> None:
    linked = re.findall(r"\]\(([\w/.-]+\.md)[#)]", PAGE.read_text())
    assert [link for link in linked if not (PAGE.parent / link).exists()] == []
