"""The command line: `keylane demo | run | broker | groups | topics`."""

from keylane.cli.main import main

__all__ = ["main"]
