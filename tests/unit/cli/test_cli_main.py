"""One line for every error, the right exit code, and nothing imported that the command does not need."""

import argparse
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import keylane
from keylane.cli import main as cli
from keylane.cli.main import COMMANDS, build_parser
from keylane.errors import BrokerUnavailableError, InternalError, KeylaneError, UsageError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """Puts a command of the test's own in the place of `keylane broker`."""

    def install(run: Callable[[argparse.Namespace], int]) -> None:
        module = types.ModuleType("keylane.cli.broker")

        def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
            parser = subparsers.add_parser("broker")
            parser.add_argument("--port", type=int)
            parser.set_defaults(func=run)

        module.add_parser = add_parser  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "keylane.cli.broker", module)

    return install


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_args: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("--port x: give a number"), 2, "keylane: error: --port x: give a number\n"),
        (BrokerUnavailableError("no broker\n  at a:1"), 1, "keylane: error: no broker at a:1\n"),
        (KeylaneError(""), 1, "keylane: error: KeylaneError\n"),
        (InternalError("odd"), 1, "keylane: error: odd (a defect of keylane; please report it)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_a_code(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    command(raising(error))
    assert cli(["broker"]) == code
    assert capsys.readouterr().err == line


def test_the_commands_own_code_is_passed_on(command: Callable[..., None]) -> None:
    command(lambda args: int(args.port))
    assert cli(["broker", "--port", "7"]) == 7


def test_an_unexpected_exception_keeps_its_traceback_and_is_called_a_defect(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(ZeroDivisionError("oops")))
    assert cli(["broker"]) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "in run" in text
    assert text.endswith(
        "ZeroDivisionError: oops\nkeylane: error: this is a defect of keylane; please report it with the lines above\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["groups"], "the following arguments are required: COMMAND"),
        (["brokers"], "invalid choice: 'brokers'"),
        (["grops", "list"], "did you mean groups? (see `keylane --help`)"),
        (["groups", "descibe", "g"], "did you mean describe? (see `keylane groups --help`)"),
        (["groups", "list", "--bootstrap-sever", "a:1"], "did you mean --bootstrap-server?"),
        (
            ["records", "show", "g", "t:0@1", "--execute"],
            "an option of `keylane records replay`, `keylane records skip`",
        ),
        (["run", "x.py", "--availabel-now"], "did you mean --available-now?"),
        (["broker", "--port", "x"], "argument --port: invalid int value: 'x' (see `keylane broker --help`)"),
        (["broker", "--no-such"], "unrecognized arguments: --no-such"),
    ],
)
def test_wrong_usage_is_one_line_too(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    command(lambda _args: 0)
    assert cli(arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("keylane: error: ")
    assert error.count("\n") == 1


def test_without_anything_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli([]) == 0
    output = capsys.readouterr()
    assert all(f"    {name} " in output.out for name in COMMANDS)
    assert output.err == ""


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["topics", "list"],
        ["topics", "create", "t"],
        ["groups", "list"],
        ["groups", "reset", "g", "--to-latest"],
    ],
)
def test_bootstrap_has_kafkas_own_name_too(command: list[str]) -> None:
    for option in ("--bootstrap", "--bootstrap-server"):
        assert build_parser(command).parse_args([*command, option, "a:1"]).bootstrap == "a:1"


def test_help_has_every_command_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in COMMANDS)
    assert "keylane run pipeline.py" in text


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli(["--version"])
    assert capsys.readouterr().out == f"keylane {keylane.__version__}\n"


def test_a_reader_that_leaves_is_no_defect() -> None:
    command = f"{sys.executable} -m keylane --help | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_the_list_of_commands_imports_none_of_them() -> None:
    program = (
        "import sys; from keylane.cli.main import main; code = main([]); "
        "print(code, [name for name in sys.modules if name.startswith('keylane.')], 'asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = ["errors", "version", "cli", "cli.exits", "cli.logs", "cli.main", "cli.streams", "telling"]
    last = done.stdout.splitlines()[-1]
    assert all(f"\n    {command} " in done.stdout for command in COMMANDS), "each is in the list"
    code, *modules, asyncio = re.findall(r"\w[\w.]*", last)
    assert (code, {*modules}, asyncio) == ("0", {f"keylane.{name}" for name in imported}, "False")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_parser_of_a_command_imports_nothing_heavy(command: str) -> None:
    program = (
        "import sys; from keylane.cli.main import build_parser; "
        f"build_parser([{command!r}]); "
        "heavy = {'rich', 'confluent_kafka', 'pyspark', 'aiohttp', 'matplotlib', 'kio'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_argument_in_another_encoding_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some of them end the client with the process. A file may be called so."""
    park = ["operate", "park-record", "g", "t:0@1", "--dlq", "d", "--reason", "M\udcfcller"]
    for command in (["groups", "offsets", "a\udcff"], park):
        assert cli([*command, "--bootstrap-server", "127.0.0.1:1"]) == 2
        assert "is no UTF-8: set the terminal, or LANG, to UTF-8" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caf\udce9.py").write_text("")
    assert cli(["run", "caf\udce9.py"]) == 2
    assert "is no UTF-8" not in capsys.readouterr().err
