"""One module an API.

Each has `API_KEY`, `MIN_VERSION`, `MAX_VERSION`, `LACKS` and `async def handle(request, header, node)` or
`def begin(request, header, node)` (see `keylane.broker.dispatch`).

A module in this folder is served; there is no other list. `LACKS` says in one line what the API does not do here, and
goes into docs/supported-apis.md. `HAS_LARGE_ANSWERS = True` marks an API of which no answer is made before its client
has taken those before it, `MAY_POLL = True` one whose wait may be dropped when its client is gone; `SHORT_WAY` serves
requests that are like one before. What kio is too slow for is read and written by hand, in the same module; each layout
is tested against kio's own readers and writers.
"""
