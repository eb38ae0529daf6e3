"""`python -m keylane.broker`: the broker without the rest of the command line."""

import argparse
import sys

from keylane.broker.run import add_arguments, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="keylane broker", description="A durable Kafka-protocol broker on one node.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
