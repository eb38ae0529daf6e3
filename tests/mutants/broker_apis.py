"""Mutants of the broker's APIs: topics by their ids, and what administrators ask of one node."""

from __future__ import annotations

from mutants import Mutant

HANDLERS = "broker/handlers"
KNOWN = "unit/broker/test_known_requests.py"
IDS = "interop/test_topic_id_contract.py"
ADMIN = "interop/test_admin_contract.py"
FAULTS = "integration/test_embedded_broker_faults.py"

MUTANTS = [
    Mutant(
        "an offset for a topic that was deleted is committed for another one of its name",
        "broker/handlers/offset_commit.py",
        "    if isinstance(known.named, UUID) and node.topic_name(known.named) is None:\n",
        "    if known.named is None:\n",
        f"{KNOWN}::test_what_is_known_of_a_topic_does_not_hold_of_another_one_of_its_name",
    ),
    Mutant(
        "the offset of another topic of its name is told of a topic that was deleted",
        "broker/handlers/offset_fetch.py",
        "name = topic if topic_id is None else node.topic_name(topic_id)\n",
        'name = topic if topic_id is None else "flights"\n',
        f"{KNOWN}::test_what_is_known_of_a_topic_does_not_hold_of_another_one_of_its_name",
    ),
    Mutant(
        "a topic has another id after a restart",
        "broker/topic_files.py",
        '                uuid.UUID(entry["id"]),\n',
        "                uuid.uuid4(),\n",
        "integration/test_topic_ids.py::test_a_topic_has_its_id_for_good",
    ),
    Mutant(
        "the topics of a commit that nobody knows are refused with all others",
        f"{HANDLERS}/offset_commit.py",
        "        code = codes.UNKNOWN_TOPIC_ID if name is None else error\n",
        "        code = codes.UNKNOWN_TOPIC_ID if None in names else error\n",
        f"{IDS}::test_offsets_are_committed_and_fetched_by_id[keylane]",
    ),
    Mutant(
        "a record for a topic that nobody knows is lost in silence",
        f"{HANDLERS}/produce.py",
        "return RefusedError(codes.UNKNOWN_TOPIC_ID,",
        "return RefusedError(codes.NONE,",
        f"{IDS}::test_records_are_produced_by_id[keylane]",
    ),
    Mutant(
        "a piece of topics ends with a whole topic",
        f"{HANDLERS}/describe_topic_partitions.py",
        "        end = min(found.partition_count, first + left)\n",
        "        end = found.partition_count\n",
        f"{ADMIN}::test_topics_are_described_in_pieces[keylane]",
    ),
    Mutant(
        "a log is said to move to a folder that is not there",
        f"{HANDLERS}/alter_replica_log_dirs.py",
        "    if folder != node.logs_folder:\n",
        "    if not folder:\n",
        f"{ADMIN}::test_a_log_stays_in_the_folder_that_there_is[keylane-1]",
    ),
    Mutant(
        "a piece of topics begins with a whole topic",
        f"{HANDLERS}/describe_topic_partitions.py",
        "        first = start[1] if name == start[0] else 0\n",
        "        first = 0\n",
        f"{ADMIN}::test_topics_are_described_in_pieces[keylane]",
    ),
    Mutant(
        "a partition can be put on a broker that is not there",
        f"{HANDLERS}/alter_partition_reassignments.py",
        "    if tuple(wanted.replicas) != (node.node_id,):\n",
        "    if node.node_id not in wanted.replicas:\n",
        f"{ADMIN}::test_partitions_are_on_the_only_broker[keylane-1]",
    ),
    Mutant(
        "a quota is taken, and not kept",
        f"{HANDLERS}/alter_client_quotas.py",
        "    if kept:\n",
        "    if not keys:\n",
        "integration/test_broker_protocol.py::test_a_quota_is_not_taken",
    ),
    Mutant(
        "a test's fault of one group is met by all groups",
        "testing/faults.py",
        "if is_about and (fault.group is None or fault.group in groups()):",
        "if is_about:",
        f"{FAULTS}::test_a_fault_of_one_group_is_not_another_ones",
    ),
    Mutant(
        "a group that is one of several in a request is overlooked",
        "testing/named_groups.py",
        '{"group_id", "group_ids", "groups", "groups_names", "key", "coordinator_keys"}',
        '{"group_id", "group_ids", "groups", "key", "coordinator_keys"}',
        f"{FAULTS}::test_the_groups_of_a_request_are_found",
    ),
    Mutant(
        "a topic's compression is its producer's, whatever its config says",
        f"{HANDLERS}/produce.py",
        "    if values.codec is not None and values.codec != header.codec:",
        "    if False:",
        "interop/test_topic_contract.py::test_a_topic_has_a_compression_of_its_own[keylane-gzip]",
    ),
    Mutant(
        "Java's readers get LZ4 frames whose blocks depend on one another",
        "wire/packing.py",
        'bytes.fromhex("04224d18604082")',
        'bytes.fromhex("04224d18404082")',
        "property/wire/test_unpacking.py::test_what_we_pack_is_unpacked_by_others",
    ),
    Mutant(
        "a time before the bounds is taken",
        f"{HANDLERS}/produce.py",
        "if header.max_timestamp > latest or earliest > 0:",
        "if header.max_timestamp > latest:",
        "interop/test_topic_contract.py::test_times_out_of_bounds[keylane]",
    ),
    Mutant(
        "what has no effect is not kept",
        "broker/topic_settings.py",
        "        kept[name] = check_value(name, value, wanted)\n",
        "        if (text := check_value(name, value, wanted)) and name in HONOURED:\n            kept[name] = text\n",
        "interop/test_topic_contract.py::test_what_has_no_effect_here_is_kept_and_shown[keylane]",
    ),
    Mutant(
        "a young record is compacted",
        "storage/compacting.py",
        "            if min_lag_ms:\n",
        "            if False:\n",
        "unit/storage/test_compaction.py::test_what_is_young_is_left_alone_and_what_is_old_is_not",
    ),
    Mutant(
        "an old record waits for more to compact",
        "storage/compacting.py",
        "or not (is_enough or is_late)",
        "or not is_enough",
        "unit/storage/test_compaction.py::test_what_is_young_is_left_alone_and_what_is_old_is_not",
    ),
    Mutant(
        "what was changed of a broker is forgotten by its restart",
        "broker/node.py",
        "        self.broker_configs.load()\n",
        "",
        "integration/test_broker_process.py::test_options_that_were_changed_outlive_a_restart",
    ),
    Mutant(
        "topics do not hear of a default that was changed",
        "broker/config_resources.py",
        "    await node.topics.reconfigure(known.now)\n",
        "",
        "interop/test_topic_contract.py::test_the_defaults_of_topics_change_while_the_broker_runs[keylane]",
    ),
    Mutant(
        "what was changed for all brokers wins over a broker's own",
        "broker/broker_configs.py",
        "{**settings.get(ALL, {}), **settings.get(self.own, {})}",
        "{**settings.get(self.own, {}), **settings.get(ALL, {})}",
        "unit/broker/test_broker_config.py::test_what_is_changed_while_it_runs_outlives_it_and_a_brokers_own_wins",
    ),
    Mutant(
        "transactions are listed whatever their age",
        "broker/handlers/list_transactions.py",
        "now_ms - found.started_ms > least_ms",
        "True",
        "interop/test_transaction_contract.py::test_transactions_are_listed_by_age_and_by_expression[keylane]",
    ),
    Mutant(
        "a group that is not there is Dead without an error in every version",
        "broker/handlers/describe_groups.py",
        "tells and is_known and group.absent is not None",
        "False",
        f"{ADMIN}::test_a_group_that_is_not_there_is_an_error_from_version_6_on[keylane]",
    ),
    Mutant(
        "any text is a partition of a share group",
        "broker/handlers/find_coordinator.py",
        "    return bool(group) and is_id\n",
        "    return True\n",
        f"{ADMIN}::test_who_coordinates_a_partition_of_a_share_group[keylane-6]",
    ),
]
