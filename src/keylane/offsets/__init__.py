"""Offsets without Kafka: what is complete, what may be dispatched, what is committed, and how that is written down."""

from keylane.offsets.codec import Encoding, decode, encode, encoding_of, is_map
from keylane.offsets.tracker import DispatchBound, OffsetMap, PartitionTracker

__all__ = ["DispatchBound", "Encoding", "OffsetMap", "PartitionTracker", "decode", "encode", "encoding_of", "is_map"]
