"""The offset store: what committed offsets cost in memory and at a start, and how fast commits and fetches are.

Speed is measured beside Apache Kafka, by turns, with one load generator for both (`make bench-offsets`).
"""
