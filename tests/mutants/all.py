"""Every mutant."""

from __future__ import annotations

from mutants import engine

MUTANTS = [*engine.MUTANTS]
