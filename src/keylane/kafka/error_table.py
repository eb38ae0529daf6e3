"""Every error of Kafka's protocol and of librdkafka, once, with what it means to who meets it.

The idea: what dies and comes back with a node shows as some forty errors, and a hand-kept list of them misses the next
one. So this table has them all, and the sets that decide are derived from it. docs/errors.md is the same table.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from confluent_kafka import KafkaError

from keylane.wire import codes


class Meaning(Enum):
    """What becomes of the client, the question or the commit that meets the error."""

    PASSING = "passing"
    """Asked again until the time is up: a node starts, dies, or hands over what it led."""
    TELLING = "telling"
    """Told to who asked, and gone on: it is about one record, one request or one moment."""
    ENDING = "ending"
    """The consumer ends with it at once: trying again cannot help."""


class Mark(Enum):
    """What some errors mean beside that."""

    NO_ANSWER = "no broker said anything"
    NO_PARTITION = "an answer to who asks for a topic or a partition: there is none"
    NOT_ALLOWED = "no answer to whether something is there"
    MOVED_ON = "what the member had is another's, or given anew: nothing of it begins"
    BATCH = "the broker refuses the batch that an output was in: it may be another output's fault"
    BLAMELESS = "not the fault of the output that is told: its transaction was aborted, or the client gave up"
    DAMAGED = "who reads the record ends, and names it"
    PRODUCER = "a transaction's producer ends, and another one takes its place"


class Group(NamedTuple):
    """Errors of one cause."""

    meaning: Meaning
    cause: str
    names: tuple[str, ...]
    marks: frozenset[Mark] = frozenset()


def _group(meaning: Meaning, cause: str, names: str, *marks: Mark) -> Group:
    return Group(meaning, cause, tuple(names.split()), frozenset(marks))


GROUPS = (
    _group(
        Meaning.PASSING,
        "A broker is away, or its connection broke.",
        "_TRANSPORT _SSL _RESOLVE _TIMED_OUT _TIMED_OUT_QUEUE _ALL_BROKERS_DOWN _WAIT_COORD _DESTROY_BROKER "
        "NETWORK_EXCEPTION",
        Mark.NO_ANSWER,
    ),
    _group(
        Meaning.PASSING,
        "The client is learning which brokers there are and what they lead.",
        "_WAIT_CACHE _NOENT _PARTIAL _NODE_UPDATE _UNKNOWN_BROKER _RETRY _IN_PROGRESS _PREV_IN_PROGRESS _OUTDATED "
        "_INTR REBOOTSTRAP_REQUIRED",
    ),
    _group(
        Meaning.PASSING,
        "A partition's leader moves, starts, or has a disk that fails.",
        "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE FENCED_LEADER_EPOCH "
        "UNKNOWN_LEADER_EPOCH OFFSET_NOT_AVAILABLE KAFKA_STORAGE_ERROR UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID "
        "PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE NEW_LEADER_ELECTED INELIGIBLE_REPLICA",
    ),
    _group(
        Meaning.PASSING,
        "Too few replicas or too little time at the moment.",
        "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND _ISR_INSUFF THROTTLING_QUOTA_EXCEEDED",
    ),
    _group(
        Meaning.PASSING,
        "A coordinator moves, loads, or has a transaction to end first.",
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR UNSTABLE_OFFSET_COMMIT "
        "CONCURRENT_TRANSACTIONS TRANSACTION_COORDINATOR_FENCED",
    ),
    _group(
        Meaning.PASSING,
        "The controller moves.",
        "NOT_CONTROLLER STALE_CTRL_EPOCH STALE_BROKER_EPOCH UNKNOWN_CONTROLLER_ID BROKER_ID_NOT_REGISTERED",
    ),
    _group(
        Meaning.PASSING,
        "A fetch session is gone; the client opens another one.",
        "FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH FETCH_SESSION_TOPIC_ID_ERROR",
    ),
    _group(
        Meaning.PASSING,
        "A topic or partition is not there, or this broker does not know it yet.",
        "UNKNOWN_TOPIC_OR_PART _UNKNOWN_PARTITION _UNKNOWN_TOPIC",
        Mark.NO_PARTITION,
    ),
    _group(
        Meaning.PASSING,
        "The group rebalances; the member learns its new epoch.",
        "REBALANCE_IN_PROGRESS STALE_MEMBER_EPOCH MEMBER_ID_REQUIRED",
    ),
    _group(
        Meaning.TELLING,
        "The group went on without this member: it joins again.",
        "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_MEMBER_EPOCH _ASSIGNMENT_LOST _MAX_POLL_EXCEEDED",
        Mark.MOVED_ON,
    ),
    _group(
        Meaning.TELLING,
        "The coordinator knows the member's name under another id: it joins again if that is an earlier one of its "
        "own, and ends if another process has the name.",
        "FENCED_INSTANCE_ID",
        Mark.MOVED_ON,
    ),
    _group(
        Meaning.TELLING,
        "The group is full, or still has a member that died under the same name.",
        "GROUP_MAX_SIZE_REACHED UNRELEASED_INSTANCE_ID",
    ),
    _group(
        Meaning.TELLING,
        "The commit's metadata is too large: it is committed with less.",
        "OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
    ),
    _group(
        Meaning.TELLING,
        "A position is outside the log, at its end, or not there.",
        "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION _NO_OFFSET _PARTITION_EOF "
        "OFFSET_MOVED_TO_TIERED_STORAGE",
    ),
    _group(
        Meaning.TELLING,
        "The broker finds a batch damaged: one that is sent to it, or one in its log.",
        "INVALID_MSG",
        Mark.BATCH,
        Mark.DAMAGED,
    ),
    _group(
        Meaning.TELLING,
        "The client finds a batch damaged that it has read.",
        "_BAD_MSG _BAD_COMPRESSION",
        Mark.DAMAGED,
    ),
    _group(
        Meaning.TELLING,
        "A record is refused, with all of its batch.",
        "INVALID_RECORD INVALID_TIMESTAMP MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE _INVALID_DIFFERENT_RECORD",
        Mark.BATCH,
    ),
    _group(
        Meaning.TELLING,
        "A record is refused, or cannot be read.",
        "INVALID_MSG_SIZE INVALID_REQUIRED_ACKS UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE "
        "_KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION "
        "_QUEUE_FULL",
    ),
    _group(
        Meaning.TELLING,
        "The output was given up with its transaction, or after its time.",
        "_MSG_TIMED_OUT _PURGE_QUEUE _PURGE_INFLIGHT _STATE TRANSACTION_ABORTABLE INVALID_TXN_STATE "
        "UNKNOWN_PRODUCER_ID INVALID_PRODUCER_ID_MAPPING OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH "
        "PRODUCER_FENCED _FENCED",
        Mark.BLAMELESS,
    ),
    _group(
        Meaning.TELLING,
        "The producer's sequence does not fit.",
        "DUPLICATE_SEQUENCE_NUMBER _GAPLESS_GUARANTEE _INCONSISTENT",
    ),
    _group(
        Meaning.TELLING,
        "What was asked for is refused, or is so already.",
        "TOPIC_EXCEPTION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT "
        "INVALID_CONFIG INVALID_REQUEST POLICY_VIOLATION TOPIC_DELETION_DISABLED NON_EMPTY_GROUP GROUP_ID_NOT_FOUND "
        "GROUP_SUBSCRIBED_TO_TOPIC RESOURCE_NOT_FOUND DUPLICATE_RESOURCE TRANSACTIONAL_ID_NOT_FOUND "
        "REASSIGNMENT_IN_PROGRESS NO_REASSIGNMENT_IN_PROGRESS ELECTION_NOT_NEEDED OPERATION_NOT_ATTEMPTED "
        "LOG_DIR_NOT_FOUND LISTENER_NOT_FOUND UNACCEPTABLE_CREDENTIAL MISMATCHED_ENDPOINT_TYPE "
        "UNSUPPORTED_ENDPOINT_TYPE _UNKNOWN_GROUP _NOOP",
    ),
    _group(
        Meaning.TELLING,
        "The broker, or the client itself, failed in a way that has no name.",
        "UNKNOWN _FAIL _CRIT_SYS_RESOURCE _FS _INVALID_ARG _EXISTING_SUBSCRIPTION _CONFLICT _UNKNOWN_PROTOCOL "
        "_NOT_IMPLEMENTED _READ_ONLY _UNDERFLOW _INVALID_TYPE _NOT_CONFIGURED _APPLICATION _DESTROY",
    ),
    _group(
        Meaning.TELLING,
        "No error: librdkafka's own events.",
        "NO_ERROR _ASSIGN_PARTITIONS _REVOKE_PARTITIONS",
    ),
    _group(
        Meaning.TELLING,
        "Answers to what keylane does not ask: brokers and controllers among themselves, tokens, telemetry, share "
        "groups, Kafka Streams.",
        "DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH "
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED "
        "INVALID_PRINCIPAL_TYPE PRINCIPAL_DESERIALIZATION_FAILURE INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION "
        "FEATURE_UPDATE_FAILED SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE DUPLICATE_BROKER_REGISTRATION "
        "INCONSISTENT_CLUSTER_ID INVALID_REGISTRATION INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND "
        "UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND "
        "INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH SHARE_SESSION_LIMIT_REACHED STREAMS_INVALID_TOPOLOGY "
        "STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED",
    ),
    _group(
        Meaning.ENDING,
        "The user may not do this.",
        "GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        Mark.NOT_ALLOWED,
    ),
    _group(
        Meaning.ENDING,
        "The user is not let in.",
        "SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE SECURITY_DISABLED _AUTHENTICATION",
    ),
    _group(
        Meaning.ENDING,
        "The broker does not take a setting of the member or of its transactions.",
        "INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID INVALID_SESSION_TIMEOUT UNSUPPORTED_ASSIGNOR "
        "INVALID_REGULAR_EXPRESSION INVALID_TRANSACTION_TIMEOUT",
    ),
    _group(
        Meaning.ENDING,
        "The broker is too old for what was asked.",
        "UNSUPPORTED_VERSION _UNSUPPORTED_FEATURE",
    ),
    _group(
        Meaning.ENDING,
        "librdkafka gave its client up.",
        "_FATAL",
        Mark.BLAMELESS,
        Mark.PRODUCER,
    ),
)


def code_of(name: str) -> int | None:
    """None for an error that this version of confluent-kafka does not have, and so never tells."""
    # librdkafka's names first: for its own errors, and for those of Kafka's that it names otherwise.
    known: int | None = getattr(KafkaError, name, getattr(codes, name, None))
    return known


def _codes(groups: list[Group]) -> frozenset[int]:
    return frozenset(code for group in groups for name in group.names if (code := code_of(name)) is not None)


def meaning(which: Meaning) -> frozenset[int]:
    """The codes of all errors with this meaning. One that is not in the table is told."""
    return _codes([group for group in GROUPS if group.meaning is which])


def marked(mark: Mark) -> frozenset[int]:
    """The codes of all errors with this mark."""
    return _codes([group for group in GROUPS if mark in group.marks])
