"""Every mutant."""

from __future__ import annotations

from mutants import coordinator, engine, kafka, options, spark, storage

MUTANTS = [*engine.MUTANTS, *options.MUTANTS, *coordinator.MUTANTS, *storage.MUTANTS, *kafka.MUTANTS, *spark.MUTANTS]
