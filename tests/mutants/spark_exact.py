"""Mutants of exactly once from a streaming query into Kafka (docs/adr/0087)."""

from __future__ import annotations

from mutants import Mutant

_SEEN_ONCE = "property/spark/test_exactly_once_simulation.py::test_each_row_is_seen_once_whatever_dies"
_PROTOCOL = "spark/structured/exact/protocol.py"

MUTANTS = [
    Mutant(
        "an older driver of a sink decides beside a newer one",
        _PROTOCOL,
        "    if answer.code in FENCED or (",
        "    if answer.code in FENCED and not isinstance(request, Init):\n        return None\n"
        "    if answer.code in FENCED or (",
        _SEEN_ONCE,
        "exactly once into Kafka: fence",
    ),
    Mutant(
        "a sink's batch is done before its transactions are ended",
        _PROTOCOL,
        "        missing = yield from _finish(record.entries)\n",
        "        yield from _write(plan.driver, plan.sequence + 1, record._replace(entries=()))\n"
        "        missing = yield from _finish(record.entries)\n",
        _SEEN_ONCE,
        "exactly once into Kafka: done",
    ),
    Mutant(
        "a sink's start aborts what is listed",
        _PROTOCOL,
        "    record = _record((yield from _told(Read())))\n",
        "    yield from _abort(seen)\n    record = _record((yield from _told(Read())))\n",
        "unit/spark/test_exact_protocol.py::test_a_start_ends_what_is_listed_and_aborts_the_rest",
        "exactly once into Kafka: the list is the decision",
    ),
    Mutant(
        "a transactional id serves again in the same batch",
        "spark/structured/exact/task_ids.py",
        "            if last < batch:\n",
        "            if last <= batch:\n",
        "unit/spark/test_exact_protocol.py::test_ids_serve_again_in_later_batches_alone",
        "exactly once into Kafka: ids",
    ),
    Mutant(
        "a batch is listed though its transactions may be gone",
        _PROTOCOL,
        "        yield from _check_open(listed, entries, batch, now_ms)\n",
        "",
        "unit/spark/test_exact_protocol.py::test_a_batch_whose_transaction_is_gone_or_about_to_be_is_not_listed",
        "exactly once into Kafka: list",
    ),
    Mutant(
        "what is lost is written again with other rows",
        _PROTOCOL,
        "    if different:\n",
        "    if different and different[0].partition not in made:\n",
        "property/spark/test_exactly_once_simulation.py"
        "::test_rows_that_a_replay_puts_elsewhere_end_the_query_and_never_come_twice",
        "exactly once into Kafka: replay",
    ),
    Mutant(
        "a batch that is done is written again",
        _PROTOCOL,
        "    return plan.record is None or plan.record.batch != batch or partition in plan.lost\n",
        "    return True\n",
        _SEEN_ONCE,
        "exactly once into Kafka: replay",
    ),
    Mutant(
        "a record of another query is taken",
        _PROTOCOL,
        "    if record.query != query:\n",
        "    if record.query != query and not record.is_done:\n",
        "unit/spark/test_exact_protocol.py::test_a_record_of_another_query_is_refused",
        "exactly once into Kafka: names",
    ),
    Mutant(
        "what the brokers have forgotten is written again",
        _PROTOCOL,
        "        elif answer.code == FORGOTTEN:\n            forgotten.append(entry)\n",
        "        elif answer.code == FORGOTTEN:\n            lost.append(entry)\n",
        "unit/spark/test_exact_protocol.py::test_what_the_brokers_have_forgotten_is_not_guessed",
        "exactly once into Kafka: forgotten ids",
    ),
    Mutant(
        "a transaction that timed out behind a listed one is taken for it",
        _PROTOCOL,
        "(lost if (yield from _is_the_same(entry)) else forgotten).append(entry)",
        "lost.append(entry)",
        "unit/spark/test_exact_protocol.py"
        "::test_a_transaction_that_a_late_request_began_behind_the_listed_one_says_nothing_of_it",
        "exactly once into Kafka: late requests",
    ),
    Mutant(
        "a replay whose rows have swapped a part is taken for what was listed",
        "spark/structured/exact/digest.py",
        "sum(map(mul, hashes, hashes))",
        "sum(hashes)",
        "property/spark/test_exact_digest.py::test_what_two_rows_swap_is_noticed",
        "exactly once into Kafka: digest",
    ),
    Mutant(
        "what a stopped query left open stays open",
        "spark/structured/exact/driver.py",
        "    if error != codes.UNKNOWN_TOPIC_OR_PARTITION:  # then",
        "    if error == codes.UNKNOWN_TOPIC_OR_PARTITION:  # then",
        "integration/test_exact_sink.py::test_what_a_query_left_open_is_ended_when_it_is_asked_for",
        "exactly once into Kafka: ending",
    ),
    Mutant(
        "an abort goes on under another driver",
        _PROTOCOL,
        "        yield from start(plan.driver)\n",
        "        yield from start()\n",
        "unit/spark/test_exact_protocol.py::test_an_abort_touches_nothing_once_another_run_has_begun",
        "exactly once into Kafka: abort",
    ),
    Mutant(
        "a producer of an open transaction ends it",
        "kafka/open_transactions.py",
        "        if error_type is not None:\n            self._abort()\n",
        "        self._abort()\n",
        "integration/test_open_transactions.py::test_a_transaction_outlives_its_producer",
        "exactly once into Kafka: tasks",
    ),
]
