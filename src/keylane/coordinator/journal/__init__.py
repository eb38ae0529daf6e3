"""The coordinator's journal: its files and their bytes, what a start makes of them, and what readers of
`__consumer_offsets` see of it."""
