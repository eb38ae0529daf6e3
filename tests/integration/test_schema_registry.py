"""Schema Registry's deserializers in a pipeline: Avro, JSON Schema and Protobuf, over HTTP to a registry.

The registry here is a stand-in that keeps schemas in memory and answers the requests of confluent-kafka's own client,
which writes and reads all that the tests produce and consume. `interop/test_registry.py` does the same with a real one.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from kit.stage import Stage

aiohttp = pytest.importorskip("aiohttp", reason="the extra http is not installed")
for needed in ("httpx2", "fastavro", "jsonschema", "google.protobuf"):
    pytest.importorskip(needed, reason=f"the extra schema is not installed: {needed}")

from aiohttp import web  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

from kit.schemas import FORMS, check_pipeline, serializer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


class Registry:
    """A Schema Registry in memory, on a free port. Use it in a `with` block."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        """By id less 1."""
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Registry:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.add_routes(
            [
                web.post("/subjects/{subject}/versions", self._register),
                web.post("/subjects/{subject}", self._lookup),
                web.get("/schemas/ids/{id}", self._by_id),
                web.get("/schemas/guids/{guid}", self._missing),
                web.get("/subjects/{subject}/versions/{version}", self._by_version),
            ]
        )
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _register(self, request: web.Request) -> web.Response:
        schema = await request.json()
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(request.match_info["subject"], [])
        if number not in versions:
            versions.append(number)
        return web.json_response(self._said(request.match_info["subject"], number))

    async def _lookup(self, request: web.Request) -> web.Response:
        schema = await request.json()
        if schema not in self.schemas:
            return await self._missing(request)
        return web.json_response(self._said(request.match_info["subject"], self.schemas.index(schema) + 1))

    async def _by_id(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        number = int(request.match_info["id"])
        if not 0 < number <= len(self.schemas):
            return await self._missing(request)
        return web.json_response(self._said("", number))

    async def _by_version(self, request: web.Request) -> web.Response:
        versions = self.subjects.get(request.match_info["subject"])
        if not versions:
            return await self._missing(request)
        return web.json_response(self._said(request.match_info["subject"], versions[-1]))

    async def _missing(self, _: web.Request) -> web.Response:
        return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)

    def _said(self, subject: str, number: int) -> dict[str, Any]:
        version = self.subjects.get(subject, [number]).index(number) + 1
        return {"id": number, "subject": subject, "version": version, **self.schemas[number - 1]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("schemas") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


@pytest.mark.parametrize("form", FORMS)
def test_a_pipeline_reads_what_the_registrys_serializers_wrote(
    broker: BrokerProcess, registry: Registry, form: str
) -> None:
    check_pipeline(Stage(broker.bootstrap, f"schema-{form}"), registry.url, form)


def test_a_deserializer_travels_and_is_made_where_it_is_used(registry: Registry) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    serialize, deserialize, value = serializer("avro", registry.url)
    data = serialize(value(5), SerializationContext("t", MessageField.VALUE))
    from keylane.consumer.decoding import Field

    for one in (deserialize, cloudpickle.loads(cloudpickle.dumps(deserialize))):
        before = len(registry.asked)
        assert one(data, Field("t", "value", [])) == {"n": 5}
        assert one(data, Field("t", "value", [])) == {"n": 5}
        assert len(registry.asked) == before + 1, "the schema is asked for once"


def test_a_registry_without_an_address_is_refused() -> None:
    with pytest.raises(kl.UsageError, match=r"registry=\{\}: give its settings, 'url' at least"):
        kl.schema.avro({})
