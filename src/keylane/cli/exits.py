"""Exit codes of every command."""

EXIT_FAILURE = 1
"""Something failed: a broker, a handler, a step."""
EXIT_USAGE = 2
"""A wrong option, argument or file of the user's."""
EXIT_INTERRUPTED = 130
"""Ctrl-C or SIGTERM ended a command before it was done (128 + SIGINT, as shells have it)."""
