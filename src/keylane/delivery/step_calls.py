"""`RecordSteps`: what a handler has as `context.step`, for one attempt of a record, wherever its answers are kept.

The idea: the handler asks what is kept of a step, and calls its function only where nothing is. A coroutine's call is
a task of its own: a handler that is over its time leaves it running, and the record's next attempt waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import random
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from keylane.consumer.dead_letters import note_steps
from keylane.delivery.steps.formats import MAX_TEXT_BYTES, RecordIdentity, Step
from keylane.errors import Fatal, StepLostError, UsageError
from keylane.flow.retries import delay_s
from keylane.foreign_errors import is_throttled
from keylane.options import Retries, is_coroutine_function
from keylane.records import Record
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from keylane.records import Codec, Context, StepCall

_BYTES, _TEXT, _JSON, _CODEC = b"b", b"s", b"j", b"c"


class StepPlace(Protocol):
    """Where the steps of a record are kept. Thread safety: any thread."""

    running: dict[Step, asyncio.Task[Any]]
    """Calls of coroutines; the event loop's."""

    def identity_of(self, record: Record) -> RecordIdentity: ...

    def check(self, context: Context) -> None:
        """Raises `UsageError` where an attempt may have no further step."""

    def ask(self, step: Step) -> Future[bytes | None]:
        """What is kept of it. Raises `StepLostError`."""

    def keep(self, step: Step, answer: bytes) -> Future[bytes]:
        """What is given from now on: this, or what was kept before. Raises `StepLostError` where nobody will ever be
        given the answer."""

    def forget(self, step: Step) -> Future[None]:
        """Raises `StepLostError`."""

    def confirm(self, step: Step) -> Future[None]:
        """That the record is still this member's. Raises `StepLostError` where it is not."""


class StepPlaces(Protocol):
    """Thread safety: any thread."""

    group: str

    def steps_of(self, record: Record) -> StepPlace | None:
        """None where the record is not this member's any more."""

    def may_call(self) -> bool:
        """Whether a call may begin as soon as nothing is kept of its step."""


def with_steps(places: StepPlaces, handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, whose context has steps."""

    def call(record: Record, context: Context) -> Any:
        steps = RecordSteps(places, record)
        context.keep_steps(steps)
        try:
            return handler(record, context)
        except BaseException as error:
            steps.note_done(error)
            raise

    async def call_async(record: Record, context: Context) -> Any:
        steps = AsyncRecordSteps(places, record)
        context.keep_steps(steps)
        try:
            return await handler(record, context)
        except BaseException as error:
            steps.note_done(error)
            raise

    return call_async if is_coroutine_function(handler) else call


class RecordSteps:
    """Of a handler that is a plain function."""

    def __init__(self, places: StepPlaces, record: Record) -> None:
        self._places = places
        self._record = record
        self._place = places.steps_of(record)
        self._used: set[Step] = set()
        self._done: list[str] = []

    def step(self, context: Context, call: StepCall) -> Any:
        """See `Context.step`."""
        if is_coroutine_function(call.function):
            raise UsageError(f"context.step: {call.function!r} is a coroutine function, and the handler is a plain one")
        step, place = self._begin(context, call)
        repeats = Repeats(call.retries, self._record)
        while True:
            found = place.ask(step).result()
            if found is not None:
                return self._given(found, step, call)
            if not self._places.may_call():
                place.confirm(step).result()
            try:
                value = call.function(*call.args)
                break
            except Exception as error:
                pause_s = repeats.pause_s(error)
                if context.cancelled or (context.deadline or math.inf) <= time.monotonic() + pause_s:
                    raise
            time.sleep(pause_s)
        if call.keep_if is not None and not call.keep_if(value):
            return value
        return self._given(place.keep(step, encoded(value, step, call.codec)).result(), step, call)

    def forget(self, context: Context, name: str, key: str) -> Any:
        """See `Context.forget`."""
        step, place = self._to_forget(context, name, key)
        place.ask(step).result()
        place.forget(step).result()

    def key(self, name: str, key: str) -> str:
        """See `Context.step_key`."""
        step, _ = self._named(name, key)
        parts = json.dumps([self._places.group, *step.record, step.name, step.key])
        return hashlib.sha256(parts.encode()).hexdigest()[:32]

    def note_done(self, error: BaseException) -> None:
        """For the record's dead letter, if it becomes one."""
        if self._done and isinstance(self._record, Record):  # rows have other letters
            note_steps(error, (self._record.topic, self._record.partition, self._record.offset), self._done)

    def _begin(self, context: Context, call: StepCall) -> tuple[Step, StepPlace]:
        name = call.name or getattr(call.function, "__name__", "")
        if not (call.retries is None or isinstance(call.retries, Retries)):
            raise UsageError(f"context.step: retries is {kind_of(call.retries)}: give keylane.Retries(...)")
        if not name or name == "<lambda>":
            raise UsageError(f"context.step: {call.function!r} has no name by which its answer can be kept: give name=")
        step, place = self._named(name, call.key)
        if step in self._used:
            what = f"a second step {name!r}" + (f" with key={call.key!r}" if call.key else "")
            raise UsageError(f"context.step: {what} for one record would get the first one's answer: give key=")
        self._check(context, step)
        self._used.add(step)
        return step, place

    def _given(self, answer: bytes, step: Step, call: StepCall) -> Any:
        """What is given of what is kept."""
        self._done.append(f"{step.name}/{step.key}" if step.key else step.name)
        return decoded(answer, step, call.codec)

    def _to_forget(self, context: Context, name: str, key: str) -> tuple[Step, StepPlace]:
        step, place = self._named(name, key)
        self._check(context, step)
        self._used.discard(step)
        return step, place

    def _named(self, name: str, key: str) -> tuple[Step, StepPlace]:
        for what, text in (("name", name), ("key", key)):
            if not isinstance(text, str):
                raise UsageError(f"context.step: {what} is {kind_of(text)}: give a text")
            if len(text.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
                raise UsageError(f"context.step: {what} has more than {MAX_TEXT_BYTES} bytes: give a shorter one")
        if self._place is None:
            raise _lost(name)
        return Step(self._place.identity_of(self._record), name, key), self._place

    def _check(self, context: Context, step: Step) -> None:
        if self._places.steps_of(self._record) is not self._place:
            raise _lost(step.name)
        assert self._place is not None, "a step has a name there"
        self._place.check(context)


class AsyncRecordSteps(RecordSteps):
    """The same for a coroutine function: what is asked is awaited. Belongs to its event loop."""

    async def step(self, context: Context, call: StepCall) -> Any:
        step, place = self._begin(context, call)
        task = place.running.get(step)
        if task is None:
            task = asyncio.create_task(self._run(place, step, call))
            place.running[step] = task
            task.add_done_callback(partial(_ended, place.running, step))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if context.cancelled:  # else it is over its time, and the next attempt waits for it
                task.cancel()
            raise

    async def _run(self, place: StepPlace, step: Step, call: StepCall) -> Any:
        repeats = Repeats(call.retries, self._record)
        while True:
            found = await asyncio.wrap_future(place.ask(step))
            if found is not None:
                return self._given(found, step, call)
            if not self._places.may_call():
                await asyncio.wrap_future(place.confirm(step))
            try:
                value = call.function(*call.args)
                if inspect.isawaitable(value):
                    value = await value
                break
            except Exception as error:
                pause_s = repeats.pause_s(error)
            await asyncio.sleep(pause_s)
        if call.keep_if is not None and not call.keep_if(value):
            return value
        kept = await asyncio.wrap_future(place.keep(step, encoded(value, step, call.codec)))
        return self._given(kept, step, call)

    async def forget(self, context: Context, name: str, key: str) -> None:
        step, place = self._to_forget(context, name, key)
        await asyncio.wrap_future(place.ask(step))
        await asyncio.wrap_future(place.forget(step))


class Repeats:
    """Of one step's calls within an attempt of its record."""

    def __init__(self, retries: Retries | None, record: Record) -> None:
        self._retries = retries
        self._record = record
        self._attempt = 0
        self._began = time.monotonic()

    def pause_s(self, error: Exception) -> float:
        """Until the next call. Raises the error where there is none: what is left to the record's own retries."""
        self._attempt += 1
        retries = self._retries
        if retries is None or not retries.allow(self._attempt) or retries.forbid(error):
            raise error
        if isinstance(error, Fatal) or is_throttled(error):
            raise error
        pause_s = delay_s(retries, self._attempt, error, self._record, random.random)
        age_s = time.monotonic() + pause_s - self._began
        if retries.max_age_ms is not None and age_s * 1000 > retries.max_age_ms:
            raise error
        return pause_s


def _lost(name: str) -> StepLostError:
    return StepLostError(f"step {name!r}: its partition is not read here any more")


def _ended(running: dict[Step, asyncio.Task[Any]], step: Step, task: asyncio.Task[Any]) -> None:
    running.pop(step, None)
    with suppress(asyncio.CancelledError):
        task.exception()  # nobody may wait for it any more; asyncio must not warn about it


def encoded(value: Any, step: Step, codec: Codec | None = None) -> bytes:
    """A step's result as it is kept. Raises `UsageError`."""
    if codec is not None:
        data = codec.dumps(value)
        if not isinstance(data, bytes):
            raise UsageError(f"step {step.name!r}: its codec's dumps returned {kind_of(data)}: return bytes")
        return _CODEC + data
    if isinstance(value, bytes):
        return _BYTES + value
    if isinstance(value, str):
        return _TEXT + value.encode(errors="surrogatepass")
    try:
        return _JSON + json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        raise UsageError(
            f"step {step.name!r} returned {kind_of(value)}, which is not kept: return bytes, a str, or what JSON "
            "takes, or give codec="
        ) from None


def decoded(answer: bytes, step: Step, codec: Codec | None = None) -> Any:
    """What `encoded` was given. Raises `UsageError` where it had a codec, and there is none."""
    kind, data = answer[:1], answer[1:]
    if kind == _CODEC:
        if codec is None:
            raise UsageError(f"step {step.name!r}: what is kept of it was made by a codec: give codec=")
        return codec.loads(data)
    if kind == _BYTES:
        return data
    return data.decode(errors="surrogatepass") if kind == _TEXT else json.loads(data)
