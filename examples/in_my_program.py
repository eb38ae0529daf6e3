"""The pipeline of orders.py inside a program of one's own: `run` blocks until the ends that the logs had are done."""

from orders import orders

import keylane as kl

with kl.ParallelConsumer(orders, ending_offsets="latest") as consumer:
    consumer.run()
print(consumer.snapshot().processed, "records processed")
