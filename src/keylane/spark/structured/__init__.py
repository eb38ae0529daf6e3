"""The DataFrame pipeline: the source and the sink `keylane`, `parallel_map`, and commits for the group."""
