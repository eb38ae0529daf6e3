"""Use cases beside a plain consumer, each with the figure to expect stated first (`make bench-scenarios`).

They are those of the Parallel Consumer's README: a slow notification that must not hold up the others, a burst at the
close of day, a model that takes processor time.
"""
