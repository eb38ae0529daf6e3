"""Work in order, many at once: what is fed runs through a function, in order by key, with retries and rates.

It knows items (a number in their source, a key, a size, a payload) and workers; no topic, commit, client or Spark.
`keylane.flow.core` decides what runs next and what follows from how it ended, `keylane.flow.items` keeps the items of
one source in their order, and `keylane.flow.workers` run the function.
"""
