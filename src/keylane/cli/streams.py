"""Standard input and output as a command finds them: closed, full, or in an encoding that lacks characters."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


def prepare_streams() -> None:
    """Standard streams that take whatever is written: what they cannot encode is escaped, and one that is closed is
    /dev/null, so that no socket or file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            made = os.open(os.devnull, os.O_RDWR)
            if made != number:
                os.dup2(made, number)
                os.close(made)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - for the life of the process
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def send_nowhere(stream: TextIO) -> None:
    """What a stream still holds, and all that follows, is dropped: the interpreter's last flush would fail again."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
