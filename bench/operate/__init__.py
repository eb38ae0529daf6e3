"""`make bench-operate`: what it costs a member that it is operated (docs/operations.md)."""
