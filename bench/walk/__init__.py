"""The files that one record, one commit and one row pass through, found by tracing real ones.

`tracer` says how what belongs to them is told from what runs anyway; `walks` has the three, each a `Walk`: `record`,
`commit`, `row`.
"""
