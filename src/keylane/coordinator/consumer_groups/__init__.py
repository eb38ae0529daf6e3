"""Consumer groups of KIP-848, purely: one is `group.ConsumerGroup`, all of a coordinator `registry.ConsumerGroups`."""
