"""Offset servers: committed offsets and groups in a replicated log of Apache Kafka, served by any number of processes.

`run` is the process. Below it:

    serving       one server: its doors, its partitions, and what it knows of the others
    relay         requests that are answered by a broker of the log's cluster, and their answers
    forwarding    requests that are answered by the server that leads their group
    upstream      one connection to who answers in place of this server
    apis          the APIs that are answered otherwise than by the embedded broker
    coordinators  the coordinators of all offsets partitions, as one
    partitions    the offsets partitions, each followed by a warm table or led
    group_requests  the groups that a request is for, purely
    between       what servers ask of each other, purely
    known_topics  the topics of the log's cluster, for groups of KIP-848
    naming        which topics the names in commits stand for; `topic_ids` asks
    known_configs  what is set there for single groups
    freshness     what is asked of its brokers by who needs it
    members       the servers as members of their group, purely
    measures      a server's state as named metrics, purely; `pages` serves them
    nodes         names and addresses that clients are told, purely
    topic         the log's topic: made, or refused with what is wrong with it
"""
