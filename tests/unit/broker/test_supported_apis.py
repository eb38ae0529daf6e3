from __future__ import annotations

from pathlib import Path

from keylane.broker.supported_apis import page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_says_what_is_served() -> None:
    assert (DOCS / "supported-apis.md").read_text() == page(), (
        "run: python -m keylane.broker.supported_apis > docs/supported-apis.md"
    )
