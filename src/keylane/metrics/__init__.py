"""Metrics of a consumer, for any system that collects them.

The idea: there is one truth, `consumer.snapshot()`, and nothing is counted twice. `families` turns a snapshot into
named counters, gauges and histograms when somebody looks, so that records cost nothing more; an adapter
(`keylane.metrics.prometheus`) turns those into what its system wants. What the probes say, and how the lanes of a query
stand, is named in the same way.
"""

from keylane.metrics.families import Family, Lane, Sample, families, health_families

__all__ = ["Family", "Lane", "Sample", "families", "health_families"]
