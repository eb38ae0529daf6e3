"""Committed offsets and groups of one offsets partition in a replicated log: who leads it, and the journal on it."""
