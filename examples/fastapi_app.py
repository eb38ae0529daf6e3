"""An API with the pipeline of orders.py in its process, which drains before the process ends."""

from fastapi import FastAPI, Request
from orders import orders

from keylane.adapters.fastapi import lifespan, probes

app = FastAPI(lifespan=lifespan(orders))
app.include_router(probes)  # /healthz and /readyz


@app.get("/processed")
def processed(request: Request) -> int:
    (consumer,) = request.app.state.keylane
    return consumer.snapshot().processed
