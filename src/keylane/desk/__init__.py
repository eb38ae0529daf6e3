"""The desk: what an operator sees and does, each as one function that returns a plain report.

The idea: `keylane groups`, `operate` and `dlq` print these reports, as tables or JSON, and `keylane ui` shows them:
there is no second way to compute anything. `groups` says where groups stand, `members` what members tell, `commands`
what is sent to them and what came of it, `records` single records, `letters`, `redrive` and `purge` what is dead, and
how it comes back or goes, `stores` what a store of exactly once has.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Report: TypeAlias = dict[str, Any]
"""What was found or done, as `--json` prints it."""

TOKEN_VARIABLE = "KEYLANE_OPERATIONS_TOKEN"
"""Of the environment: the token of a group's members, for them and for who sends them commands."""
