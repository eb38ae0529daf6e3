"""The bytes of `__consumer_offsets`, purely: keys and values (`consumer_offsets`), and a commit as one batch."""
