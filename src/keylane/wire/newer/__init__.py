"""Versions of Apache Kafka 4.4 that kio does not know, in kio's form; each takes over what did not change.

Source: the schemas of kafka-clients 4.4.0.
"""

from __future__ import annotations

NEWER = frozenset({("api_versions", 5), ("delete_groups", 3), ("txn_offset_commit", 6)})
"""API and version; the module of both messages is `API_vVERSION`."""
