"""Mutants of what all members may spend together: guarantee 10 of the design."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mutants import Mutant
from mutants.faults import always, answer, argument, instead, never, value_of

if TYPE_CHECKING:
    from mutants.faults import Fault

LINE = "property/budgets/test_budget_line.py"
WINDOW = f"{LINE}::test_no_window_has_more_than_the_rate_and_the_burst"
PURSE = "unit/budgets/test_purse.py"
SLOTS = "property/budgets/test_slots.py"
LATE_SLOTS = "test_a_reader_that_starts_late_agrees"
RUNNING = "unit/budgets/test_running.py"
ENGINE = "unit/engine/test_engine_budget.py"
LATE = f"{LINE}::test_a_reader_that_starts_late_agrees"


def _mutant(breaks: str, at: str, fault: Fault, test: str) -> Mutant:
    return Mutant("guarantee 10", breaks, at, fault, test)


MUTANTS = [
    _mutant("a grant may be spent before its turn", "Line._start", instead("times", "0"), WINDOW),
    _mutant("what was granted is not used up", "Line._spend", instead("times", "0"), WINDOW),
    _mutant(
        "what is larger than the burst is let in",
        "Line._ask",
        instead("burst", "_ * 2"),
        f"{LINE}::test_what_is_larger_than_the_bucket_is_refused",
    ),
    _mutant("a bucket that is full fills further", "Limit.burst_ns", instead("burst", "_ * 2"), WINDOW),
    _mutant(
        "time flows from one leader's clock to another's",
        "Line._flow",
        instead("_epoch", "record.epoch"),
        f"{LINE}::test_a_change_of_the_leader_fills_no_bucket",
    ),
    _mutant(
        "time is the greatest that was seen",
        "Line._flow",
        value_of("_time_ms", "max(_, self._time_ms)"),
        f"{LINE}::test_a_budget_is_spent_while_there_is_demand_over_changes_of_the_leader",
    ),
    _mutant(
        "a record that is written twice counts twice",
        "Line._is_again",
        answer("False"),
        f"{LINE}::test_a_second_copy_of_a_record_counts_for_nothing",
    ),
    _mutant(
        "more is given back than was granted",
        "Line._return",
        instead("min", "max"),
        f"{LINE}::test_a_give_back_counts_once_and_no_further_than_the_grant",
    ),
    _mutant(
        "a lease does not end for what is given back",
        "Line._return",
        never("until_ns"),
        f"{LINE}::test_a_give_back_behind_its_lease_counts_for_nothing",
    ),
    _mutant(
        "who starts late believes that all buckets are full", "Line._adopt", value_of("used_ns", "_ - 10**12"), LATE
    ),
    _mutant(
        "who starts late believes the last state alone",
        "Line._adopt",
        never("known"),
        f"{LINE}::test_a_writer_that_believes_in_a_full_bucket_misleads_nobody",
    ),
    _mutant(
        "a day's cap holds for one ask alone",
        "Line._spent_on",
        answer("0"),
        f"{LINE}::test_no_day_has_more_than_its_cap",
    ),
    _mutant(
        "a cool-down holds nothing",
        "Line._start",
        instead("_cool_to_ns", "0"),
        f"{LINE}::test_a_cool_down_holds_what_costs_money_alone",
    ),
    _mutant(
        "calls that began before a cool-down extend it",
        "Line._cool",
        never("began"),
        f"{LINE}::test_a_cool_down_holds_all_and_begins_slowly_and_empty",
    ),
    _mutant(
        "a debt has no end",
        "Line._settle",
        instead("min", "max"),
        f"{LINE}::test_a_settlement_makes_a_debt_and_no_endless_one",
    ),
    _mutant(
        "numbers out of all bounds are read",
        "entries:_within",
        never("least"),
        f"{LINE}::test_what_is_out_of_bounds_is_refused",
    ),
    _mutant(
        "a lease counts from the reading",
        "Purse.answered",
        instead("sent_s", "now"),
        f"{PURSE}::test_the_lease_counts_from_the_sending",
    ),
    _mutant(
        "what has no lease any more is given back",
        "Purse.give_back",
        instead("left_s", "1"),
        f"{PURSE}::test_what_is_left_is_given_back_before_the_lease_ends_and_not_behind",
    ),
    _mutant(
        "small ones pass a large one that waits",
        "Purse.spend",
        value_of("kept", "{}"),
        f"{PURSE}::test_the_first_that_lacks_something_is_served_before_smaller_ones",
    ),
    _mutant(
        "money goes on without a broker",
        "Purse._grant_share",
        never("_has_cap"),
        f"{PURSE}::test_without_a_broker_money_waits",
    ),
    _mutant(
        "what ran is spent once more",
        "Purse.end",
        never("has_run"),
        f"{PURSE}::test_what_ran_is_spent",
    ),
    _mutant("what others keep is given away", "Slots._divide", instead("free", "9"), f"{SLOTS}::{LATE_SLOTS}"),
    _mutant(
        "more is kept than one had",
        "Slots.hold",
        instead("min", "max"),
        f"{SLOTS}::{LATE_SLOTS}",
    ),
    _mutant(
        "the calls of one that is gone count for ever",
        "Slots.forget_ended",
        never("until_ns"),
        f"{SLOTS}::test_a_lease_that_has_ended_holds_nothing",
    ),
    _mutant(
        "one has a larger share than it wants",
        "Slots._parts",
        instead("min", "max"),
        f"{SLOTS}::test_who_asks_for_what_others_keep_waits_for_its_turn",
    ),
    _mutant(
        "what cannot be divided goes to the same one always",
        "Slots.hold",
        never("_level"),
        f"{SLOTS}::test_what_cannot_be_divided_goes_round",
    ),
    _mutant(
        "who starts late believes the last state of the slots alone",
        "Slots.adopt",
        always("is_first"),
        f"{SLOTS}::test_a_writer_that_knows_of_nobody_misleads_nobody",
    ),
    _mutant(
        "the lease of calls at once counts from the reading",
        "Running.read",
        instead("sent_s", "now"),
        f"{RUNNING}::test_the_lease_counts_from_the_sending",
    ),
    _mutant(
        "calls start behind the lease",
        "Running.room",
        never("_until_s"),
        f"{RUNNING}::test_the_lease_counts_from_the_sending",
    ),
    _mutant(
        "more starts than a record on its way says",
        "Running.room",
        never("_out"),
        f"{RUNNING}::test_while_a_record_is_on_its_way_it_keeps_to_what_that_says",
    ),
    _mutant(
        "a member starts beyond its part",
        "Share.usable",
        answer("self.has"),
        f"{RUNNING}::test_what_is_beyond_its_part_is_not_begun_and_given_to_others",
    ),
    _mutant(
        "one that does not come again keeps something for itself for ever",
        "Purse._forget_ended",
        instead("FORGET_S", "10**9"),
        f"{PURSE}::test_one_that_does_not_come_again_holds_up_nobody_who_comes_all_the_time",
    ),
    Mutant(
        "option: budget",
        "what waits comes again behind what waits for less long",
        "FlowCore.release_due",
        instead("reversed()", "self._schedule.pop_due(now)"),
        f"{ENGINE}::test_what_waits_comes_again_in_the_order_in_which_it_asked",
    ),
    Mutant(
        "option: budget",
        "what expired keeps what it spent",
        "spending:_has_run",
        answer("True"),
        f"{ENGINE}::test_what_was_not_run_has_spent_nothing",
    ),
    Mutant(
        "option: budget",
        "what workers give back keeps what it spent",
        "Spending.withdrawn",
        argument("end", "has_run", "True"),
        f"{ENGINE}::test_what_workers_give_back_has_spent_nothing",
    ),
    Mutant(
        "option: budget",
        "the cost is asked for at each wake",
        "Spending.starts",
        always("cost"),
        f"{ENGINE}::test_what_a_record_costs_is_asked_for_once_however_long_it_waits_and_whatever_fails",
    ),
    Mutant(
        "option: budget",
        "a record starts before its turn",
        "FlowCore._starts",
        never("_spending"),
        f"{ENGINE}::test_records_start_within_the_budget_and_all_of_them",
    ),
    Mutant(
        "option: budget",
        "all that is ready is looked at again and again",
        "FlowCore._room",
        always("_spending"),
        f"{ENGINE}::test_nothing_is_looked_at_again_and_again_while_it_waits",
    ),
]
