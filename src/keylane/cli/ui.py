"""`keylane ui`: a page in the browser that shows groups while they run, and acts where it has the members' token."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from keylane.cli.asking import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_MS, add_bootstrap, add_offsets_servers
from keylane.cli.tables import say
from keylane.desk import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.pipeline import Pipeline
    from keylane.ui.page import Page

DEFAULT_PORT = 8420

DESCRIPTION = """\
Groups, members, partitions with their offset maps, what runs and what waits, dead letters: live in the browser, until
Ctrl-C. Members tell more when they report (operations=Operations(...), or `keylane run --operate`).
"""

EPILOG = f"""\
examples:
  keylane ui                                         at http://127.0.0.1:{DEFAULT_PORT}/, of {DEFAULT_BOOTSTRAP}
  keylane ui --bootstrap kafka.example:9092 --command-config client.properties
  keylane ui --token-file token                      with pause, resume, drain, adjust, seek and redrive
  keylane ui --pipeline pipeline.py                  its brokers; payloads as its deserializers make them
  keylane ui --host 0.0.0.0 --allow-host ops.example behind a proxy that has the name, TLS and the log-in

Without a token the page only shows. With that of the members, in {TOKEN_VARIABLE} or a file, it
acts for who enters the same token in the page, and shows payloads of records to nobody else.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane ui`."""
    parser = subparsers.add_parser(
        "ui",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_bootstrap(parser, f"brokers to ask (default: bootstrap.servers of --command-config, else {DEFAULT_BOOTSTRAP})")
    add("--command-config", metavar="FILE", help="client settings (TLS, SASL), a line NAME=VALUE each")
    add_offsets_servers(parser, "the groups")
    add("--timeout-ms", type=int, default=DEFAULT_TIMEOUT_MS, metavar="N", help="per question (default %(default)s)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default %(default)s)")
    add("--port", type=int, default=DEFAULT_PORT, metavar="N", help="0 takes a free one (default %(default)s)")
    add("--allow-host", action="append", default=[], metavar="NAME", help="a name that leads here; may be repeated")
    add("--token-file", metavar="FILE", help="a file with the token of the members")
    add(
        "--pipeline",
        action="append",
        default=[],
        metavar="FILE[:NAME]",
        help="a pipeline: its brokers, its deserializers for its group and its dead letters; may be repeated",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C or SIGTERM; returns the exit code."""
    from keylane.cli.asking import admin_with, settings_of
    from keylane.cli.operate_answers import token_of
    from keylane.cli.pipeline_file import load_pipeline
    from keylane.cli.signals import stopping
    from keylane.demo.stop import StopRequest
    from keylane.errors import UsageError

    if not 0 <= args.port < 2**16:
        raise UsageError(f"--port {args.port}: give a number from 0 to 65535")
    pipelines = [load_pipeline(one)[1] for one in args.pipeline]
    kafka = settings_of(args, pipelines[0].kafka if pipelines else {})
    token = token_of(args)
    stop = StopRequest()
    with (
        stopping(stop, "closing the page"),
        page_of(kafka, admin_with(args, kafka), token, args.host, args.port, args.allow_host, pipelines) as page,
    ):
        acts = "shows, and acts with the members' token" if token else "only shows: it has no token"
        say(f"keylane ui: {page.url} {acts}; Ctrl-C ends it", flush=True)
        while not stop.wait(3600):
            pass
    return 0


def page_of(
    kafka: Settings,
    admin: Admin,
    token: str | None,
    host: str,
    port: int,
    hosts: Sequence[str],
    pipelines: Sequence[Pipeline],
) -> Page:
    """Raises `PeerError` when the extra `ui` is not installed."""
    from keylane.demo.extras import require

    require("aiohttp", extra="ui")
    from keylane.ui.page import Page

    return Page(kafka, admin, token=token, host=host, port=port, hosts=hosts, pipelines=pipelines)


def open_in_browser(url: str) -> None:
    """Where there is a desktop; a browser in this terminal would take it over."""
    import webbrowser

    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        webbrowser.open(url)
