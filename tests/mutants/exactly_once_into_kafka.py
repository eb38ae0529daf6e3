"""Mutants of the sink that writes rows of a query exactly once."""

from __future__ import annotations

from mutants import Mutant
from mutants.faults import always, answer, argument, before, begin, compare, drop, instead, never

MUTANTS = [
    Mutant(
        "exactly once into Kafka: abort",
        "an abort goes on under another driver",
        "protocol:abort",
        argument("start", 0, "None"),
        "unit/spark/test_exact_protocol.py::test_an_abort_touches_nothing_once_another_run_has_begun",
    ),
    Mutant(
        "exactly once into Kafka: digest",
        "a replay whose rows have swapped a part is taken for what was listed",
        "Digest.add",
        instead("mul", "max"),
        "property/spark/test_exact_digest.py::test_what_two_rows_swap_is_noticed",
    ),
    Mutant(
        "exactly once into Kafka: done",
        "a sink's batch is done before its transactions are ended",
        "protocol:commit",
        before("_finish", "yield from _write(plan.driver, plan.sequence + 1, record._replace(entries=()))"),
        "property/spark/test_exactly_once_simulation.py::test_each_row_is_seen_once_whatever_dies",
    ),
    Mutant(
        "exactly once into Kafka: ending",
        "what a stopped query left open stays open",
        "end_transactions",
        compare("error UNKNOWN_TOPIC_OR_PARTITION", "=="),
        "integration/test_exact_sink.py::test_what_a_query_left_open_is_ended_when_it_is_asked_for",
    ),
    Mutant(
        "exactly once into Kafka: fence",
        "an older driver of a sink decides beside a newer one",
        "protocol:_told",
        before("FENCED", "if answer.code in FENCED and not isinstance(request, Init):\n    return None"),
        "property/spark/test_exactly_once_simulation.py::test_each_row_is_seen_once_whatever_dies",
    ),
    Mutant(
        "exactly once into Kafka: forgotten ids",
        "what the brokers have forgotten is taken for done",
        "protocol:_finish",
        never("forgotten"),
        "unit/spark/test_exact_protocol.py::test_what_the_brokers_have_forgotten_is_not_guessed",
    ),
    Mutant(
        "exactly once into Kafka: ids",
        "a transactional id serves again in the same batch",
        "TaskIds.take",
        compare("last batch", "<="),
        "unit/spark/test_exact_protocol.py::test_ids_serve_again_in_later_batches_alone",
    ),
    Mutant(
        "exactly once into Kafka: late requests",
        "a transaction that timed out behind a listed one is taken for it",
        "protocol:_finish",
        always("_is_the_same"),
        "unit/spark/test_exact_protocol.py::test_a_transaction_that_a_late_request_began_behind_the_listed_one_says_nothing_of_it",
    ),
    Mutant(
        "exactly once into Kafka: list",
        "a batch is listed though its transactions may be gone",
        "protocol:commit",
        drop("_check_open"),
        "unit/spark/test_exact_protocol.py::test_a_batch_whose_transaction_is_gone_or_about_to_be_is_not_listed",
    ),
    Mutant(
        "exactly once into Kafka: names",
        "a record of another query is taken",
        "protocol:check",
        never("query"),
        "unit/spark/test_exact_protocol.py::test_a_record_of_another_query_is_refused",
    ),
    Mutant(
        "exactly once into Kafka: replay",
        "what is lost is written again with other rows",
        "_check_replay",
        never("different"),
        "property/spark/test_exactly_once_simulation.py::test_rows_that_a_replay_puts_elsewhere_end_the_query_and_never_come_twice",
    ),
    Mutant(
        "exactly once into Kafka: replay",
        "a batch that is done is written again",
        "writes",
        answer("True"),
        "property/spark/test_exactly_once_simulation.py::test_each_row_is_seen_once_whatever_dies",
    ),
    Mutant(
        "exactly once into Kafka: tasks",
        "a producer of an open transaction ends it",
        "OpenTransaction.__exit__",
        always("error_type"),
        "integration/test_open_transactions.py::test_a_transaction_outlives_its_producer",
    ),
    Mutant(
        "exactly once into Kafka: the list is the decision",
        "a sink's start aborts what is listed",
        "protocol:start",
        begin("yield from _abort(seen)"),
        "unit/spark/test_exact_protocol.py::test_a_start_ends_what_is_listed_and_aborts_the_rest",
    ),
]
