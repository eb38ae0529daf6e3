"""The group coordinator: consumer groups, their committed offsets and transactions, behind one durable journal.

`coordinator.Coordinator` serves requests. Beside it stand the shells that make durable what is decided
(`group_actions`, `consumer_group_actions`, `share_service`, `offset_service`, `transaction_service`, `removals`); below
them:

    journal/        the one file of all records: appended, synced, replayed, replaced by snapshots
    replicated/     the same port on a replicated log, and who leads it
    groups/         the classic group protocol as a state machine, purely
    consumer_groups/  the consumer group protocol (KIP-848), its assignors and records, purely
    share_groups/   share groups (KIP-932): members, and which record is with whom, purely
    offsets/        committed offsets in memory, and which of them are stale, purely
    transactions/   transactional ids as a state machine, purely
    formats.py      the bytes of keys, values and batches of `__consumer_offsets`, purely
"""
