"""What one function alone does is done by no other file, and each check finds what is planted."""

from __future__ import annotations

import ast

import pytest

from kit import doors

BROKERS = ["broker", "coordinator", "offset_servers", "storage", "wire"]
"""Where nothing of a user's runs."""


def test_only_one_file_makes_texts_of_errors_that_may_be_anybodys() -> None:
    assert doors.by_others(doors.foreign_texts, ["foreign_errors.py"], BROKERS) == [], "keylane.foreign_errors does"


def test_only_one_file_reads_a_messages_headers() -> None:
    assert doors.by_others(doors.header_reads, ["records.py"]) == [], "keylane.records.headers_of does"


def test_few_files_ask_for_offsets_by_time_or_by_end() -> None:
    asking = ["kafka/admin.py", "kafka/consumer.py", "kafka/logs.py"]
    assert doors.by_others(doors.offset_questions, asking) == [], "keylane.kafka.admin and .logs do"


@pytest.mark.parametrize(
    "fault",
    [
        "except Exception as error: raise Wrong(f'it failed: {error}')",
        "except BaseException as error: text = str(error)",
        "except (OSError, Exception) as error: logger.warning('%s', error)",
        "except Exception as error: text = f'{error!r}'",
        "finally: text = f'{self.failure.error}'",
    ],
)
def test_a_text_of_anybodys_error_is_found(fault: str) -> None:
    assert [line for line, _ in doors.foreign_texts(ast.parse(f"try: pass\n{fault}\n"))] == [2]
    given = ast.parse("def f(error: BaseException) -> str:\n    return str(error)\n")
    assert [line for line, _ in doors.foreign_texts(given)] == [2]


@pytest.mark.parametrize(
    "text",
    ["except OSError as error: text = str(error)", "except Exception as error: raise Wrong('it failed') from error"],
)
def test_a_text_of_an_error_of_ones_own_is_none(text: str) -> None:
    assert list(doors.foreign_texts(ast.parse(f"try: pass\n{text}\n"))) == []


def test_reads_of_headers_and_questions_for_offsets_are_found() -> None:
    assert list(doors.header_reads(ast.parse("message.headers()\nself._message.headers\noutput.headers"))) != []
    assert len(list(doors.header_reads(ast.parse("output.headers\nrecord.headers")))) == 0
    assert len(list(doors.offset_questions(ast.parse("client.offsets_for_times([])")))) == 1
