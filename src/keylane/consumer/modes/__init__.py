"""Delivery modes: what `delivery=` does in another way, one file a mode, behind the protocol that `AtLeastOnce` is."""
