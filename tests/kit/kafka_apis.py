"""The APIs that Apache Kafka 4.4.0 offers with its defaults, as it tells them, and why this broker leaves some out."""

from __future__ import annotations

OF_KAFKA = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 6), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 42: (0, 3), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
    49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
    80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 1), 89: (0, 1),
    90: (0, 1), 91: (0, 0), 92: (0, 0), 93: (0, 0), 94: (0, 0),
}  # fmt: skip
"""By key: oldest and newest version."""
OWN = 27_500
"""ConditionalCommit is keylane's own."""
NOT_OFFERED = {
    **dict.fromkeys((38, 39, 40, 41), "there are no delegation tokens"),
    **dict.fromkeys((50, 51), "users are in a file, which commands of keylane change"),
    **dict.fromkeys((64, 80, 81, 93), "there is one node, which nobody adds, takes out or votes for"),
    **dict.fromkeys((83, 84, 85, 86, 87), "nodes keep the state of share groups at one another; here is one node"),
    **dict.fromkeys((88, 89, 94), "there are no groups of the streams protocol: Kafka Streams uses the classic one"),
}
"""By key: why. A request of these is answered by closing the connection, as by Apache Kafka with what it does not
offer."""
NOT_ITS_OLDEST = {17: "a handshake of version 0 is followed by bytes that are no requests"}
"""By key: why the oldest version of Apache Kafka is not offered."""
