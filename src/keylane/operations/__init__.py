"""Operations: members of a group tell what they do, and do what an operator asks, through two topics of Kafka.

The idea: both topics are in the cluster that the group reads, so there is no address to know, and it works for
processes and lanes, on any hosts. `commands` says what a command is and which count, `results` what members answer,
`reports` what they tell by themselves: all three are pure. `agent` is the member's end of it, on threads of its own:
nothing of it is on the path of a record; `operator` is the other end (docs/adr/0100).
"""
