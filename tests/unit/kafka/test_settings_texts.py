"""Settings with characters that end the client, and the process with it."""

from __future__ import annotations

import pytest

from keylane.errors import UsageError
from keylane.kafka.faults import client_of


@pytest.mark.parametrize(
    ("name", "value"), [("group.id", "a\udcff"), ("client.id", "a\0b"), ("sasl.password", "p\udcff")]
)
def test_a_setting_with_a_character_that_ends_the_client_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="holds a character that no setting may have") as refused:
        client_of(dict, {"bootstrap.servers": "here:1", name: value})
    assert ("(hidden)" in str(refused.value)) == (name == "sasl.password")
