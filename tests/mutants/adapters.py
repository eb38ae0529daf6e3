"""Mutants of the adapters to other frameworks, and of the HTTP client."""

from __future__ import annotations

from mutants import Mutant

TURNS = "http/connecting.py"
CALLS = "unit/http/test_http_calls.py"

MUTANTS = [
    Mutant(
        "all connections of an HTTP pool are made at once",
        TURNS,
        "        await self._free.acquire()\n",
        "        await asyncio.sleep(0)\n",
        f"{CALLS}::test_few_connections_are_made_at_once",
    ),
    Mutant(
        "an HTTP host that does not answer keeps others' connections waiting",
        TURNS,
        ".call_later(TURN_S, ",
        ".call_later(3_600, ",
        f"{CALLS}::test_a_host_that_does_not_answer_holds_nobody_up",
    ),
    Mutant(
        "an HTTP connection that is made, or fails, keeps its turn",
        TURNS,
        "        if id(request) in self._taken:\n",
        "        if id(self) in self._taken:\n",
        f"{CALLS}::test_few_connections_are_made_at_once",
    ),
    Mutant(
        "a message that a FastStream subscriber nacks counts as complete",
        "adapters/faststream.py",
        "        self._nacked.add((topic, partition, offset))\n",
        "        pass\n",
        "integration/test_faststream.py::test_a_nack_is_tried_again_and_all_else_is_complete_whatever_the_policy",
    ),
    Mutant(
        "a message that a FastStream subscriber skips is tried again",
        "adapters/faststream.py",
        "            return\n        finally:\n",
        "            raise\n        finally:\n",
        "integration/test_faststream.py::test_a_nack_is_tried_again_and_all_else_is_complete_whatever_the_policy",
    ),
    Mutant(
        "a FastStream application's lifespan is left out",
        "adapters/faststream.py",
        "self._app.lifespan_context() if isinstance(self._app, FastStream) else nullcontext()",
        "nullcontext()",
        "integration/test_faststream.py::test_a_subscriber_runs_as_it_is_in_order_by_key_with_retries_and_dead_letters",
    ),
    Mutant(
        "a FastAPI application ends without waiting for the records in handlers",
        "adapters/fastapi.py",
        "                    one.stop()\n",
        '                    one.stop("now")\n',
        "integration/test_fastapi.py::test_it_works_while_the_application_does_and_finishes_what_has_begun",
    ),
    Mutant(
        "a pipeline that fails inside a FastAPI application is not told by its probes",
        "adapters/fastapi.py",
        "found = [(one.fault, one.unready) for one",
        "found = [(None, None) for one",
        "integration/test_fastapi.py::test_a_pipeline_that_fails_is_told_by_the_probes_and_at_the_end",
    ),
]
