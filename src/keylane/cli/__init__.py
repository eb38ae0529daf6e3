"""The command line: `keylane demo | run | broker | groups`."""

from keylane.cli.main import main

__all__ = ["main"]
