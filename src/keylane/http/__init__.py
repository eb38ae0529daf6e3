"""HTTP requests for records, without blocking: say which request a record makes, and what its response means.

keylane sends the requests on one connection pool, as many at once as the pipeline's `max_concurrency`, in the order
that its `ordering` keeps; statuses and failures become retries or dead letters. Needs the extra `http`.
"""

from keylane.http.calls import Calls
from keylane.http.errors import HttpError, RefusedError, StatusError, ThrottledError, UnsendableError
from keylane.http.messages import Request, Response

__all__ = [
    "Calls",
    "HttpError",
    "RefusedError",
    "Request",
    "Response",
    "StatusError",
    "ThrottledError",
    "UnsendableError",
]
