"""Exactly once by persisted processing details: stores that keep a record's identity beside its handler's effects."""

from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import SqliteStore
from keylane.delivery.stores import Identity, Position, Processed

__all__ = ["Identity", "Position", "PostgresStore", "Processed", "SqliteStore"]
