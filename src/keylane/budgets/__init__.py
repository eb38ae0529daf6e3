"""Budgets: what all members of all groups may spend together, kept by a topic that all of them read.

`line` and `slots` decide, `entries` is the format of the records, `purse` and `running` are a member's own part of it,
`client` reads and writes.
"""
