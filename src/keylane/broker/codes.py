"""Kafka's error codes that the broker's own APIs answer with, under Kafka's names."""

from __future__ import annotations

from typing import Final

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
MESSAGE_TOO_LARGE: Final = 10
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
NOT_COORDINATOR: Final = 16
INVALID_TOPIC: Final = 17
NOT_ENOUGH_REPLICAS: Final = 19
INVALID_REQUIRED_ACKS: Final = 21
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
KAFKA_STORAGE_ERROR: Final = 56
FETCH_SESSION_ID_NOT_FOUND: Final = 70
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
INVALID_RECORD: Final = 87
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
UNSUPPORTED_ENDPOINT_TYPE: Final = 115


def leader_epoch_error(given: int, current: int) -> int:
    """What to answer to a client that believes in leader epoch `given` (-1: in none). Source: KIP-320."""
    if given in (-1, current):
        return NONE
    return FENCED_LEADER_EPOCH if given < current else UNKNOWN_LEADER_EPOCH
