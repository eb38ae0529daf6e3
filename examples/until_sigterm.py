"""The pipeline of orders.py in a service that SIGTERM ends: what is in handlers is finished and committed."""

import signal

from orders import orders

import keylane as kl

consumer = kl.ParallelConsumer(orders)
signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
consumer.run()
print(consumer.snapshot().processed, "records processed")
