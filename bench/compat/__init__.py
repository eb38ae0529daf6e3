"""Outside clients, tools and test suites on the embedded broker: `make compat`."""
