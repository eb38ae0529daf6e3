"""The demo: a year of real flights, enriched with the weather at departure by a slow HTTP service.

It is what a newcomer runs first and what every later measurement runs on: real data (`data`), a real service
(`service`), the pipeline as a user writes it (`pipeline`), and a verdict that does not trust it (`verify`).
"""
