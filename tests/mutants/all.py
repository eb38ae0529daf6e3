"""Every mutant."""

from __future__ import annotations

from mutants import budgets, consumer_groups, crashes, exactly_once_into_kafka, guarantees, options, other_logs, steps

MUTANTS = [
    *guarantees.MUTANTS,
    *options.MUTANTS,
    *crashes.MUTANTS,
    *exactly_once_into_kafka.MUTANTS,
    *consumer_groups.MUTANTS,
    *other_logs.MUTANTS,
    *budgets.MUTANTS,
    *steps.MUTANTS,
]
