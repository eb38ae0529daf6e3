"""Consumer groups (classic protocol), purely: one is `group.Group`, all of a coordinator `registry.GroupRegistry`."""
