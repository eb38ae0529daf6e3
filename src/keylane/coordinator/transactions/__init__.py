"""Transactional ids, purely: their states, the rules between them, and their records in `__transaction_state`."""
