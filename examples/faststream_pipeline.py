"""The subscribers of faststream_app.py: many at once, in order by key, tried again, and with dead letters."""

from faststream_app import app

import keylane as kl
from keylane.adapters.faststream import pipeline

scoring = pipeline(
    app,
    ordering="key",
    max_concurrency=100,
    retries=kl.Retries(max_attempts=3, delay_ms=100),
    on_exhausted=kl.DeadLetter("orders.placed.dead"),
    offset_reset="earliest",
)
