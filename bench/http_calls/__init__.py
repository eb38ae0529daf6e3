"""Many HTTP requests in flight at once, against a real server in a process of its own (`make bench-http`)."""
