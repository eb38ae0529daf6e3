"""Mutants of transactions V2: an epoch for each transaction, partitions that join by themselves, and the feature."""

from __future__ import annotations

from mutants import Mutant

IDS = "coordinator/transactions/transactional_ids.py"
UNIT = "unit/coordinator/transactions/test_epoch_a_transaction.py"
MACHINE = "property/coordinator/transactions/test_epochs_machine.py"
CONTRACT = "interop/test_transaction_epochs_contract.py"
SERVICE = "unit/coordinator/test_transaction_service.py"

MUTANTS = [
    Mutant(
        "the next transaction has the epoch of the last",
        IDS,
        "        epoch=min(current.epoch + 1, LAST_EPOCH),\n        last_epoch=current.epoch,\n",
        "        epoch=current.epoch,\n        last_epoch=current.epoch,\n",
        MACHINE,
    ),
    Mutant(
        "the answer to an end is not given again",
        IDS,
        "    return producer == (current.producer_id, current.epoch - 1)\n",
        "    return False\n",
        f"{UNIT}::test_what_an_end_of_no_transaction_is_told",
    ),
    Mutant(
        "a zombie is given the epoch of a classic producer",
        IDS,
        "    if not is_ended or current.client_version != EPOCH_A_TRANSACTION:\n",
        "    if not is_ended:\n",
        f"{UNIT}::test_a_zombie_is_not_given_the_epoch_of_a_classic_producer",
    ),
    Mutant(
        "a commit is answered like the abort before it",
        IDS,
        "            return codes.NONE if current.state is done else codes.INVALID_TXN_STATE\n        if committed and",
        "            return codes.NONE\n        if committed and",
        f"{UNIT}::test_what_an_end_of_no_transaction_is_told",
    ),
    Mutant(
        "a commit of nothing raises the epoch",
        IDS,
        "        if committed and current.state is not State.ONGOING:\n            return codes.INVALID_TXN_STATE\n",
        "",
        f"{UNIT}::test_what_an_end_of_no_transaction_is_told",
    ),
    Mutant(
        "the last epoch is followed by one that cannot be fenced",
        IDS,
        "    if current.next_producer_id != NO_PRODUCER_ID:\n        goes_on",
        "    if current.next_producer_id == current.producer_id:\n        goes_on",
        f"{UNIT}::test_epochs_run_out_and_the_end_gives_another_producer_id",
    ),
    Mutant(
        "a producer that has gone on is a stranger while its id changes",
        IDS,
        "        return transactional_id in self._busy or (current is not None and current.state in PREPARED)\n",
        "        return transactional_id in self._busy\n",
        f"{UNIT}::test_epochs_run_out_and_the_end_gives_another_producer_id",
    ),
    Mutant(
        "a start gives a producer id that an end has given away",
        "coordinator/transaction_service.py",
        "        ids = (max(value.producer_id, value.next_producer_id) for value in last.values())\n",
        "        ids = (value.producer_id for value in last.values())\n",
        f"{SERVICE}::test_the_producer_id_that_follows_is_kept_over_a_restart",
        "crash matrix: a producer id or an epoch is never given twice",
    ),
    Mutant(
        "the record of a prepared transaction has no producer id that follows",
        "coordinator/transactions/records.py",
        "    if value.next_producer_id != NO_PRODUCER_ID:\n",
        "    if value.next_producer_id == value.producer_id:\n",
        f"{SERVICE}::test_the_producer_id_that_follows_is_kept_over_a_restart",
    ),
    Mutant(
        "records overtake those that wait for their partition",
        "coordinator/transaction_service.py",
        "        if before is None and self._has_joined(transactional_id, producer, partitions):\n",
        "        if self._has_joined(transactional_id, producer, partitions):\n",
        f"{SERVICE}::test_records_are_not_overtaken_by_those_whose_partition_is_there",
    ),
    Mutant(
        "records are appended before their partition is part of the transaction on disk",
        "broker/handlers/produce.py",
        "            return after([joining], lambda: _append_all(request, header, node, joining.error))\n",
        "            return _append_all(request, header, node, joining.error)\n",
        f"{CONTRACT}::test_each_transaction_has_an_epoch_of_its_own[keylane]",
    ),
    Mutant(
        "a producer may begin in the middle of its sequence",
        "broker/handlers/produce.py",
        "    if header.base_sequence != 0 and log.epoch_of(header.producer_id) is None:\n",
        "    if header.base_sequence < 0:\n",
        f"{CONTRACT}::test_what_producers_of_each_version_are_told[keylane]",
    ),
    Mutant(
        "a level is answered before it is kept",
        "storage/sealed.py",
        "        await loop.run_in_executor(",
        "        loop.run_in_executor(",
        "unit/broker/test_features.py::test_a_level_holds_once_it_is_written",
    ),
    Mutant(
        "a downgrade needs no word",
        "broker/handlers/update_features.py",
        "    if level < levels[name] and kind == _UPGRADE:\n",
        "    if level < 0:\n",
        f"{CONTRACT}::test_the_level_of_transactions_is_changed_and_kept[keylane]",
    ),
    Mutant(
        "a fence of the newer kind at the classic level",
        IDS,
        "    if level >= EPOCH_A_TRANSACTION:\n        return _ended_to_next_epoch(fence",
        "    if level >= CLASSIC:\n        return _ended_to_next_epoch(fence",
        f"{UNIT}::test_below_the_level_a_fence_is_the_classic_one",
    ),
    Mutant(
        "who believes in an older leader is not told where it is",
        "broker/handlers/fetch.py",
        "            tells_leader = tells_leader or is_told\n",
        "",
        "interop/test_topic_id_contract.py::test_who_believes_in_an_older_leader_is_told_where_it_is[keylane-16]",
    ),
]
