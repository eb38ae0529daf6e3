"""The engine beside the JVM Parallel Consumer, on the work of the latter's own performance table (`make bench-engine`).

Both read the same topics of the same broker, by turns in one run; each handler measures what it really took, and the
limit of a row follows from that: no consumer can be faster than its handlers.
"""
