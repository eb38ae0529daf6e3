"""`--command-config FILE`: settings for the client, as Kafka's own tools take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_client_settings(name: str, option: str = "--command-config") -> dict[str, Any]:
    """librdkafka's settings, or those of Kafka's Java tools where they have a counterpart, one NAME=VALUE a line.

    `option` is the one that names the file. Raises `UsageError`.
    """
    from keylane.broker.config import parse_properties
    from keylane.errors import UsageError
    from keylane.kafka.java_settings import translate

    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{option} {name}: cannot be read: {reason}") from None
    return translate(parse_properties(text, name))
