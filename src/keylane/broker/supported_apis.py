"""docs/supported-apis.md, from the handlers' own constants: `python -m keylane.broker.supported_apis` prints it."""

from __future__ import annotations

import sys

from keylane.broker.dispatch import load_apis

HEAD = """\
# APIs of the embedded broker

Written by `python -m keylane.broker.supported_apis > docs/supported-apis.md` from the handlers' constants; a test
checks that it is up to date. ApiVersions offers exactly these. A request of another API, or of another version, is
answered by closing the connection with a line in the log (but for ApiVersions itself, which answers in version 0 with
UNSUPPORTED_VERSION). Records are of format 2 only (Kafka 0.11 and newer).

| API | key | versions | lacks |
|---|---|---|---|
"""

TAIL = """
ConditionalCommit is keylane's own: [offset-store.md](offset-store.md#conditional-commit) has its layout.

Topics have ids (KIP-516), which they keep for good: clients of Fetch 13, Produce 13, OffsetCommit 10 and OffsetFetch 10
give ids in place of names. A topic that is deleted and made anew under its name is another one, with no offsets of any
group; who gives the id of the one before is told UNKNOWN_TOPIC_ID, or in a fetch session INCONSISTENT_TOPIC_ID.

One broker is all there is: no election is needed, no partition can be on another broker, and the quorum is this one
node. There are no ACLs (SECURITY_DISABLED) and no quotas.

Not offered, on purpose: 71 and 72 (clients that see them probe them).

Not there are requests that nodes send to each other: markers of transactions (27), changes of nodes (64, 80, 81), and
the state of share groups (83 to 87). Not there are delegation tokens (38 to 41), two-phase commits (KIP-939), and SCRAM
credentials by request (50, 51); `keylane broker users` makes users. Groups of the streams protocol (88, 89) are not
there; Kafka Streams uses the classic one by default.

Fetch sessions (KIP-227) are kept as in Apache Kafka: at most `max.incremental.fetch.session.cache.slots` (1,000; 0 for
none), in memory. One that was not used for two minutes goes for a new one, and one that is older than that for a new
one with more partitions; a client whose session is gone is told FETCH_SESSION_ID_NOT_FOUND and opens another. A session
belongs to whoever has its id, which is drawn at random, and to no connection or user. The Java client and kafka-python
fetch in sessions; librdkafka and aiokafka ask for none. `__transaction_state` and `__share_group_state` cannot be read
as topics.

Share sessions (KIP-932) belong to a member and its connection: at most `group.share.max.share.sessions` (2,000).
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| {''.join(word.capitalize() for word in api.name.split('_'))} | {api.key} | "
        f"{api.min_version}–{api.max_version} | {api.lacks} |\n"
        for api in load_apis().values()
    ]
    return HEAD + "".join(rows) + TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
