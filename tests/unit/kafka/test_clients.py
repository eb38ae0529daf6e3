"""keylane's clients are made of confluent-kafka's own, whatever an instrumentation puts into its package."""

from __future__ import annotations

import subprocess
import sys

REPLACED = """
import confluent_kafka
from confluent_kafka import cimpl

class Instrumented(confluent_kafka.Producer): ...

confluent_kafka.Producer = confluent_kafka.Consumer = Instrumented
import importlib, pkgutil
import keylane.kafka

for module in pkgutil.iter_modules(keylane.kafka.__path__):
    made = vars(importlib.import_module(f"keylane.kafka.{module.name}"))
    assert Instrumented not in made.values(), module.name
from keylane.kafka.clients import Consumer, Producer
assert (Consumer, Producer.__bases__) == (cimpl.Consumer, (cimpl.Producer,))
"""


def test_no_instrumentation_takes_the_place_of_a_client() -> None:
    subprocess.run([sys.executable, "-c", REPLACED], check=True)
