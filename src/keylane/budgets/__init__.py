"""Budgets: what all members of all groups may spend together, kept by a topic that all of them read.

`line` decides, `entries` is the format of the records, `client` reads and writes them.
"""
