"""Configs as clients see and change them: of topics, and of the broker.

Resources, sources and sentences are Apache Kafka's. Configs of topics and groups can be changed, and of the broker's
options those that are defaults of topics. What is refused is refused as a whole: a request changes a resource in every
config that it names, or in none.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.broker.broker_configs import ALL, CHANGEABLE
from keylane.broker.config import SECRETS, BrokerConfig, kafka_name
from keylane.broker.dispatch import counted, in_slices
from keylane.broker.group_configs import GROUP_CHOICES, GROUP_CONFIGS, checked
from keylane.broker.topic_settings import HONOURED, KEPT, OWN, policies
from keylane.broker.topics import check_legal_name
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.errors import UsageError
from keylane.storage.filesystem import StorageError
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.broker.broker_configs import BrokerConfigs
    from keylane.broker.node import Node

    Changed = Callable[[Any, Mapping[str, str], BrokerConfig], dict[str, str]]
    """(configs of a request, a topic's settings, the broker's options) -> the settings that the topic is to have.
    Raises `UsageError` and `ConfigError`."""

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kafka's types of resources; there are others (BROKER_LOGGER, CLIENT_METRICS), which have no configs here."""
TOPIC_SOURCE, BROKER_SOURCE, ALL_BROKERS_SOURCE, STATIC_BROKER_SOURCE, DEFAULT_SOURCE, GROUP_SOURCE = 1, 2, 3, 4, 5, 8
"""Kafka's ConfigSource."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Of IncrementalAlterConfigs."""
_KINDS = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}
_BROKER_KINDS = {bool: "BOOLEAN", int: "LONG", float: "DOUBLE", str: "STRING"}


class ConfigError(Exception):
    """A resource's configs are not given or not changed: error code and sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Synonym(NamedTuple):
    """A config that would hold, one after the other, if those before it were not set."""

    name: str
    value: str | None
    source: int


class Config(NamedTuple):
    """One config of a resource."""

    name: str
    value: str | None
    """None for a secret: nobody is told."""
    source: int
    is_read_only: bool
    kind: int
    about: str
    synonyms: tuple[Synonym, ...]


def find_topic(node: Node, name: str) -> dict[str, str]:
    """A topic's own settings. Raises `ConfigError`."""
    if name == OFFSETS_TOPIC:
        raise ConfigError(
            codes.INVALID_REQUEST, f"{OFFSETS_TOPIC} is the broker's own: its settings are the broker's, at its start"
        )
    topic = node.topics.get(name)
    if topic is None:
        raise ConfigError(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic.settings


def check_broker(node: Node, name: str) -> None:
    """Raise `ConfigError` unless this is the one broker, or the default of all (an empty name)."""
    if name not in ("", str(node.node_id)):
        raise ConfigError(
            codes.INVALID_REQUEST, f"Unexpected broker id, expected {node.node_id} or empty string, but received {name}"
        )


def unknown_resource(kind: int) -> ConfigError:
    return ConfigError(
        codes.INVALID_REQUEST,
        f"Unsupported resource type {kind}: this broker has topics (2), itself (4) and groups (32)",
    )


def describe(node: Node, kind: int, name: str) -> list[Config]:
    """All configs of a resource. Raises `ConfigError`."""
    if kind == TOPIC and name == OFFSETS_TOPIC and node.offsets_topic.is_listed:
        return topic_configs(_of_the_offsets_topic(node.config), node.broker_configs)
    if kind == TOPIC:
        try:
            check_legal_name(name)
        except UsageError as error:
            raise ConfigError(codes.INVALID_TOPIC_EXCEPTION, str(error)) from error
        return topic_configs(find_topic(node, name), node.broker_configs)
    if kind == BROKER:
        check_broker(node, name)
        return broker_configs(node.broker_configs) if name else configs_of_all(node.broker_configs)
    if kind == GROUP:
        check_group(name)
        return group_configs(node.group_configs.texts(name), node.config)
    raise unknown_resource(kind)


def _of_the_offsets_topic(config: BrokerConfig) -> dict[str, str]:
    """What Apache Kafka gives the topic when it makes it."""
    segment_bytes = text_of(config.offsets_topic_segment_bytes)
    return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": segment_bytes}


def check_group(name: str, message: str = "Group name must not be empty") -> None:
    """Raise `ConfigError` unless this names a group; it need not be there."""
    if not name:
        raise ConfigError(codes.INVALID_REQUEST, message)


def group_configs(settings: Mapping[str, str], config: BrokerConfig) -> list[Config]:
    """A group's configs."""
    found = []
    for name, about in GROUP_CONFIGS.items():
        broker = _started_synonym(about.option, config)
        own = (Synonym(name, settings[name], GROUP_SOURCE),) if name in settings else ()
        first = (*own, *broker)[0]
        found.append(Config(name, first.value, first.source, False, _KINDS["INT"], about.about, (*own, *broker)))
    for name, choice in GROUP_CHOICES.items():
        default = Synonym(name, choice.default, DEFAULT_SOURCE)
        own = (Synonym(name, settings[name], GROUP_SOURCE),) if name in settings else ()
        synonyms = (*own, default)
        value, source = synonyms[0][1:]
        found.append(Config(name, value, source, False, _KINDS[choice.kind], choice.about, synonyms))
    return sorted(found)


def topic_configs(settings: dict[str, str], configs: BrokerConfigs) -> list[Config]:
    """A topic's configs: the honoured, those that topics alone have, and those that are kept."""
    found = []
    synonyms: tuple[Synonym, ...]
    for name, about in HONOURED.items():
        own = (Synonym(name, settings[name], TOPIC_SOURCE),) if name in settings else ()
        synonyms = (*own, *broker_synonym(about.option, configs))
        _, value, source = synonyms[0]
        found.append(Config(name, value, source, False, _KINDS[about.kind], about.about, synonyms))
    for name, own_setting in {**OWN, **KEPT}.items():
        default = Synonym(name, own_setting.default, DEFAULT_SOURCE)
        synonyms = (Synonym(name, settings[name], TOPIC_SOURCE), default) if name in settings else (default,)
        shown = f"Kept, without effect: {own_setting.about}" if name in KEPT else own_setting.about
        _, value, source = synonyms[0]
        found.append(Config(name, value, source, False, _KINDS[own_setting.kind], shown, synonyms))
    return sorted(found)


def broker_synonym(option: str, configs: BrokerConfigs) -> tuple[Synonym, ...]:
    """What it was changed to, for this broker and for all, and what it was before."""
    name = kafka_name(option)
    whose = ((configs.of(configs.own), BROKER_SOURCE), (configs.of(ALL), ALL_BROKERS_SOURCE))
    changed = tuple(Synonym(name, settings[name], source) for settings, source in whose if name in settings)
    return (*changed, *_started_synonym(option, configs.started))


def _started_synonym(option: str, config: BrokerConfig) -> tuple[Synonym, ...]:
    """What the broker was started with, when that is not the default, and the default."""
    name = kafka_name(option)
    value, default = getattr(config, option), getattr(DEFAULTS, option)
    given = (Synonym(name, text_of(value), STATIC_BROKER_SOURCE),) if value != default else ()
    return (*given, Synonym(name, text_of(default), DEFAULT_SOURCE))


def broker_configs(configs: BrokerConfigs) -> list[Config]:
    """The broker's options."""
    found = []
    for option in fields(configs.now):
        synonyms = broker_synonym(option.name, configs)
        if option.name in SECRETS:
            synonyms = tuple(one._replace(value=None) for one in synonyms)
        name, value, source = synonyms[0]
        kind = _KINDS[_broker_kind(name, getattr(configs.now, option.name))]
        is_fixed = name not in CHANGEABLE
        about = "As in Apache Kafka; set when the broker starts" + ("." if is_fixed else ", or changed while it runs.")
        found.append(Config(name, value, source, is_fixed, kind, about, synonyms))
    return sorted(found)


def _broker_kind(name: str, value: object) -> str:
    return CHANGEABLE[name].kind if name in CHANGEABLE else _BROKER_KINDS[type(value)]


def configs_of_all(configs: BrokerConfigs) -> list[Config]:
    """What was changed for all brokers."""
    return [
        Config(
            name, value, ALL_BROKERS_SOURCE, False, _KINDS[CHANGEABLE[name].kind], CHANGEABLE[name].about,
            (Synonym(name, value, ALL_BROKERS_SOURCE),),
        )
        for name, value in sorted(configs.of(ALL).items())
    ]  # fmt: skip


def text_of(value: Any) -> str:
    """As in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


DEFAULTS = BrokerConfig()
_LISTS = {
    name: text_of(getattr(DEFAULTS, setting.option)) for name, setting in CHANGEABLE.items() if setting.kind == "LIST"
}
"""The broker's options that are lists, with their defaults."""


async def alter(request: Any, answer: type, node: Node, changed: Changed, *, is_incremental: bool) -> tuple[Any, ...]:
    """Change every resource of a request, durably; an `answer` for each. `is_incremental`: what a request does not name
    stays."""
    named = await counted((each.resource_type, each.resource_name) for each in request.resources)
    answers = []
    async for resource in in_slices(request.resources):
        code, message = codes.NONE, None
        kind, name = resource.resource_type, resource.resource_name
        try:
            if named[kind, name] > 1:
                raise ConfigError(codes.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_changeable(node, kind, name, [config.name for config in resource.configs])
            if kind == BROKER:
                await _change_broker(node, name, resource.configs, request, is_incremental=is_incremental)
            if kind == GROUP:
                await _change_group(node, name, resource.configs, request, is_incremental=is_incremental)
            if kind == TOPIC:
                await _change_topic(node, name, resource.configs, changed, validate_only=request.validate_only)
        except ConfigError as error:
            code, message = error.code, str(error)
        answers.append(
            answer(error_code=ErrorCode(code), error_message=message, resource_type=kind, resource_name=name)
        )
    return tuple(answers)


def refuse_nulls(configs: Iterable[Any]) -> None:
    """Raise `ConfigError` if any has no value."""
    missing = sorted(config.name for config in configs if config.value is None)
    if missing:
        raise ConfigError(codes.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")


def _check_changeable(node: Node, kind: int, name: str, configs: list[str]) -> None:
    """Raise `ConfigError` unless these configs of this resource may be changed."""
    if len(configs) > len(set(configs)):
        raise ConfigError(codes.INVALID_REQUEST, "Error due to duplicate config keys")
    if kind == BROKER:
        check_broker(node, name)
        if fixed := sorted(set(configs) - CHANGEABLE.keys()):
            raise ConfigError(
                codes.INVALID_REQUEST,
                f"Cannot update these configs dynamically: {', '.join(fixed)}; give them at its start",
            )
    elif kind == GROUP:
        check_group(name, "Default group resources are not allowed.")
    elif kind != TOPIC:
        raise unknown_resource(kind)
    elif not name:
        raise ConfigError(codes.INVALID_REQUEST, "Default topic resources are not allowed.")


async def _change_topic(node: Node, name: str, configs: Any, changed: Changed, *, validate_only: bool) -> None:
    settings = find_topic(node, name)
    try:
        wanted = changed(configs, settings, node.config)
    except UsageError as error:
        raise ConfigError(codes.INVALID_CONFIG, str(error)) from error
    if wanted != settings and not validate_only:
        await _keep(node, name, wanted)


async def _change_broker(node: Node, name: str, configs: Any, request: Any, *, is_incremental: bool) -> None:
    known = node.broker_configs
    changed = _altered(known.of(name) if is_incremental else {}, configs, _LISTS, is_incremental=is_incremental)
    settings = {option: value.strip() for option, value in changed.items()}
    try:
        if request.validate_only:
            known.check(name, settings)
            return
        await known.alter(name, settings)
    except UsageError as error:
        raise ConfigError(codes.INVALID_REQUEST, str(error)) from error
    except StorageError as error:
        raise ConfigError(codes.KAFKA_STORAGE_ERROR, str(error)) from error
    await node.topics.reconfigure(known.now)


def combined(operation: int, items: str, given: str) -> str:
    """A list after APPEND or SUBTRACT."""
    has, more = policies(items), policies(given)
    if operation == APPEND:
        return ",".join([*has, *(one for one in more if one not in has)])
    return ",".join(one for one in has if one not in more)


def _altered(
    settings: Mapping[str, str], configs: Any, lists: Mapping[str, str], *, is_incremental: bool
) -> dict[str, str]:
    """The settings after the changes of a request. Only to those of `lists` can be appended: to what is set, or else to
    the default."""
    altered = dict(settings)
    for each in configs:
        operation = each.config_operation if is_incremental else SET
        if operation == DELETE:
            altered.pop(each.name, None)
            continue
        if operation != SET and (operation not in (APPEND, SUBTRACT) or each.name not in lists):
            raise ConfigError(
                codes.INVALID_CONFIG, f"Can't append to or subtract from key {each.name} because its type is not LIST."
            )
        refuse_nulls([each])
        has = altered.get(each.name, lists.get(each.name, ""))
        altered[each.name] = each.value if operation == SET else combined(operation, has, each.value)
    return altered


async def _change_group(node: Node, name: str, configs: Any, request: Any, *, is_incremental: bool) -> None:
    settings = _altered(
        node.group_configs.texts(name) if is_incremental else {}, configs, {}, is_incremental=is_incremental
    )
    try:
        if request.validate_only:
            checked(settings, node.config)
        else:
            await node.group_configs.alter(name, settings)
    except UsageError as error:
        raise ConfigError(codes.INVALID_CONFIG, str(error)) from error
    except StorageError as error:
        raise ConfigError(codes.KAFKA_STORAGE_ERROR, str(error)) from error


async def _keep(node: Node, name: str, wanted: dict[str, str]) -> None:
    try:
        await node.topics.alter(name, wanted)
    except KeyError:
        raise ConfigError(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist any more") from None
    except StorageError as error:
        raise ConfigError(codes.KAFKA_STORAGE_ERROR, str(error)) from error
