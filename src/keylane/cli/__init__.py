"""The command line: `keylane demo | run | broker | groups`."""
