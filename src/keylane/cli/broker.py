"""`keylane broker`: run the embedded broker in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.broker.run import add_arguments

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand; its `func` takes the parsed arguments and returns the exit code."""
    add_arguments(
        subparsers.add_parser(
            "broker",
            help="run a durable Kafka-protocol broker on one node",
            description="A durable Kafka-protocol broker on one node. It prints its address when it is ready.",
        )
    )
