"""Every mutant."""

from __future__ import annotations

from mutants import (
    adapters,
    broker_apis,
    coordinator,
    dead_letters,
    engine,
    fetch_sessions,
    kafka,
    keys,
    operations,
    options,
    records,
    replicated,
    share_groups,
    spark,
    spark_exact,
    spark_lanes,
    storage,
    transactions,
    ui,
)

MUTANTS = [
    *engine.MUTANTS,
    *options.MUTANTS,
    *coordinator.MUTANTS,
    *replicated.MUTANTS,
    *share_groups.MUTANTS,
    *storage.MUTANTS,
    *transactions.MUTANTS,
    *fetch_sessions.MUTANTS,
    *broker_apis.MUTANTS,
    *kafka.MUTANTS,
    *operations.MUTANTS,
    *keys.MUTANTS,
    *dead_letters.MUTANTS,
    *records.MUTANTS,
    *ui.MUTANTS,
    *adapters.MUTANTS,
    *spark.MUTANTS,
    *spark_exact.MUTANTS,
    *spark_lanes.MUTANTS,
]
