"""The broker's options, under Kafka's own names: `log.segment.bytes` is `log_segment_bytes` here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker.topic_settings import HONOURED, LONG_MAX, check_value
from keylane.errors import UsageError
from keylane.telling import did_you_mean
from keylane.wire.batches import OFFSETS_CODECS

if TYPE_CHECKING:
    from collections.abc import Mapping


DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECRETS = frozenset({"ssl_key_password"})
"""Options whose values nobody is told."""
EVERY_ADDRESS = ("0.0.0.0", "::")
_GROUP_TIMES = ("heartbeat_interval_ms", "session_timeout_ms")
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def _option(default: Any, least: int = 0, most: int = 2**31 - 1) -> Any:
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Kafka's broker options that are honoured; with Kafka's meanings, and its defaults but where it says so."""

    node_id: int = _option(1)
    auto_create_topics_enable: bool = True
    num_partitions: int = _option(1, least=1)
    message_max_bytes: int = _option(1_048_588)
    socket_request_max_bytes: int = _option(104_857_600, least=1_024)
    connections_max_idle_ms: int = _option(600_000, least=1_000)
    log_segment_bytes: int = _option(1_073_741_824, least=1_024)
    log_index_interval_bytes: int = _option(4_096)
    log_roll_ms: int = _option(604_800_000, least=1, most=LONG_MAX)
    log_retention_ms: int = _option(604_800_000, least=-1, most=LONG_MAX)
    """Kafka's seven days; -1: no limit."""
    log_retention_bytes: int = _option(-1, least=-1, most=LONG_MAX)
    """Of each partition; -1: no limit."""
    log_retention_check_interval_ms: int = _option(300_000, least=1)
    log_cleanup_policy: str = "delete"
    log_cleaner_min_cleanable_ratio: float = _option(0.5, most=1)
    log_cleaner_backoff_ms: int = _option(15_000, least=1)
    """How often compacted topics are looked at."""
    log_cleaner_min_compaction_lag_ms: int = _option(0, most=LONG_MAX)
    log_cleaner_max_compaction_lag_ms: int = _option(LONG_MAX, least=1, most=LONG_MAX)
    log_message_timestamp_type: str = "CreateTime"
    log_message_timestamp_before_max_ms: int = _option(LONG_MAX, most=LONG_MAX)
    log_message_timestamp_after_max_ms: int = _option(3_600_000, most=LONG_MAX)
    compression_type: str = "producer"
    compression_gzip_level: int = _option(-1, least=-1, most=9)
    compression_lz4_level: int = _option(9, least=1, most=17)
    compression_zstd_level: int = _option(3, least=-131_072, most=22)
    producer_id_expiration_ms: int = _option(86_400_000, least=1)
    fetch_max_bytes: int = _option(57_671_680, least=1_024)
    max_incremental_fetch_session_cache_slots: int = _option(1_000)
    """Fetch sessions (KIP-227) that are kept at a time; 0: none."""
    listeners: str = ""
    """One listener, `PROTOCOL://host:port` with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; empty for PLAINTEXT on
    127.0.0.1:9092. `--host` and `--port` win over its address."""
    advertised_listeners: str = ""
    """`PROTOCOL://host:port` that clients are told to connect to; empty for the address that the broker listens on."""
    ssl_certificate_location: str = ""
    """A PEM file with the certificate chain. This and the next three have librdkafka's names: Kafka's are of Java's key
    stores."""
    ssl_key_location: str = ""
    """A PEM file with the key; empty when it stands in the certificate's."""
    ssl_key_password: str = field(default="", repr=False)
    ssl_ca_location: str = ""
    """A PEM file with the authorities that sign clients' certificates."""
    ssl_client_auth: str = "none"
    """Kafka's: none, requested or required."""
    sasl_enabled_mechanisms: str = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    """Kafka's default is GSSAPI."""
    sasl_server_max_receive_size: int = _option(524_288, least=1_024)
    """Bytes of a request of a client that has not authenticated."""
    connections_max_reauth_ms: int = _option(0)
    """How long an authentication lasts; 0 for as long as the connection."""
    connection_failed_authentication_delay_ms: int = _option(100)
    keylane_users_file: str = ""
    """Users and their SCRAM credentials: written by `keylane broker users`."""
    keylane_allow_unauthenticated_remote_clients: bool = False
    """Listen beyond loopback though clients need not authenticate."""
    max_connections: int = _option(2**31 - 1, least=1)
    """A connection above it is closed at once (Kafka accepts it when another one has gone)."""
    max_connections_per_ip: int = _option(2**31 - 1)
    max_connections_per_ip_overrides: str = ""
    """`127.0.0.1:100,10.0.0.7:5`."""
    queued_max_request_bytes: int = _option(268_435_456, least=-1)
    """Of all requests that have arrived and are not answered: above it no connection's next request is read. -1: no
    limit, which is Kafka's default."""
    keylane_queued_max_answer_bytes: int = _option(268_435_456, least=-1)
    """Of all records that fetches have read and clients have not taken: above it fetches wait. -1: no limit. Kafka has
    no such option: it sends from its files."""
    keylane_max_requests_in_flight_per_connection: int = _option(2_000, least=1)
    """Above it a connection is not read from for the while. Kafka has no such option: it takes one at a time."""
    offset_metadata_max_bytes: int = _option(4_096)
    offsets_topic_num_partitions: int = _option(50, least=1)
    offsets_topic_segment_bytes: int = _option(104_857_600, least=1)
    """Of the coordinator's one journal, which holds all partitions of `__consumer_offsets`."""
    offsets_topic_compression_codec: int = _option(0, most=4)
    """Kafka's numbers: 0 none, 1 gzip, 4 zstd. The other two are not offered."""
    keylane_owned_offsets_partitions: str = ""
    """The partitions of `__consumer_offsets` that this node coordinates, such as `0-24,30`; empty for all. For others
    it answers NOT_COORDINATOR. An option of keylane's own: Kafka's nodes elect their leaders."""
    log_cleaner_delete_retention_ms: int = _option(86_400_000)
    """How long a reader of `__consumer_offsets`, or of a compacted topic, can still see that a key was removed."""
    offsets_retention_minutes: int = _option(10_080, least=1)
    """How long offsets are kept after their group has become empty, or a simple consumer's after their commit."""
    offsets_retention_check_interval_ms: int = _option(600_000, least=1)
    transaction_max_timeout_ms: int = _option(900_000, least=1)
    """The longest `transaction.timeout.ms` that a producer may ask for."""
    transactional_id_expiration_ms: int = _option(604_800_000, least=1)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _option(10_000, least=1)
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _option(3_600_000, least=1)
    group_min_session_timeout_ms: int = _option(6_000, least=1)
    group_max_session_timeout_ms: int = _option(1_800_000, least=1)
    group_initial_rebalance_delay_ms: int = _option(100)
    """Kafka's default is 3,000, for fleets. Members that start together get one generation here too: with 0 the first
    one would learn of the others at its next heartbeat, 3 s later by default."""
    group_max_size: int = _option(2**31 - 1, least=1)
    group_consumer_session_timeout_ms: int = _option(45_000, least=1)
    """This and the next are for groups of the consumer protocol (KIP-848); a group can have its own."""
    group_consumer_min_session_timeout_ms: int = _option(45_000, least=1)
    group_consumer_max_session_timeout_ms: int = _option(60_000, least=1)
    group_consumer_heartbeat_interval_ms: int = _option(5_000, least=1)
    group_consumer_min_heartbeat_interval_ms: int = _option(5_000, least=1)
    group_consumer_max_heartbeat_interval_ms: int = _option(15_000, least=1)
    group_consumer_assignment_interval_ms: int = _option(0)
    """Kafka's default is 1,000, for large groups: with it, who joins within a second of another waits for its next
    heartbeat, 5 s later."""
    group_consumer_min_assignment_interval_ms: int = _option(0)
    group_consumer_max_assignment_interval_ms: int = _option(15_000)
    group_consumer_max_size: int = _option(2**31 - 1, least=1)
    group_consumer_migration_policy: str = "bidirectional"
    """Whether a group that has members changes its protocol with them: a group of the classic protocol by a member of
    KIP-848's that joins (upgrade), a group of KIP-848's when the last such member goes (downgrade); or disabled. The
    case does not matter."""
    group_share_session_timeout_ms: int = _option(45_000, least=1)
    """This and all that begins alike is for share groups (KIP-932); a group can have its own."""
    group_share_min_session_timeout_ms: int = _option(45_000, least=1)
    group_share_max_session_timeout_ms: int = _option(60_000, least=1)
    group_share_heartbeat_interval_ms: int = _option(5_000, least=1)
    group_share_min_heartbeat_interval_ms: int = _option(5_000, least=1)
    group_share_max_heartbeat_interval_ms: int = _option(15_000, least=1)
    group_share_assignment_interval_ms: int = _option(0)
    """Kafka's default is 1,000."""
    group_share_min_assignment_interval_ms: int = _option(0)
    group_share_max_assignment_interval_ms: int = _option(15_000)
    group_share_max_size: int = _option(200, least=1, most=1_000)
    group_share_max_share_sessions: int = _option(2_000, least=1)
    group_share_record_lock_duration_ms: int = _option(30_000, least=1_000, most=3_600_000)
    """How long a record is a member's."""
    group_share_min_record_lock_duration_ms: int = _option(15_000, least=1_000, most=30_000)
    group_share_max_record_lock_duration_ms: int = _option(60_000, least=30_000, most=3_600_000)
    errors_deadletterqueue_auto_create_topics_enable: bool = False
    """Whether the topic that a share group names for its dead letters is made where it is not there."""
    errors_deadletterqueue_topic_name_prefix: str = "dlq."
    """How the names of such topics begin; empty: as they like."""
    group_share_delivery_count_limit: int = _option(5, least=2, most=25)
    """How often a record is given out at most."""
    group_share_min_delivery_count_limit: int = _option(2, least=2, most=5)
    group_share_max_delivery_count_limit: int = _option(10, least=5, most=25)
    group_share_partition_max_record_locks: int = _option(2_000, least=100, most=10_000)
    """Records of a partition between the first that is not done and the last that was given out."""
    group_share_min_partition_max_record_locks: int = _option(100, least=100, most=2_000)
    group_share_max_partition_max_record_locks: int = _option(4_000, least=2_000, most=10_000)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.metadata and not option.metadata["least"] <= value <= option.metadata["most"]:
                raise UsageError(
                    f"{kafka_name(option.name)}={value}: give a number from {option.metadata['least']} "
                    f"to {option.metadata['most']}"
                )
        for name, topic_config in (
            ("log_cleanup_policy", "cleanup.policy"),
            ("log_message_timestamp_type", "message.timestamp.type"),
            ("compression_type", "compression.type"),
            ("compression_gzip_level", "compression.gzip.level"),
        ):
            check_value(kafka_name(name), str(getattr(self, name)), HONOURED[topic_config])
        self._check_consumer_groups()
        self._check_between("group_share", "record_lock_duration_ms", "delivery_count_limit")
        self._check_between("group_share", "partition_max_record_locks")
        self.listener()
        self.advertised_address()
        self.connection_limits()
        if self.offsets_topic_compression_codec not in OFFSETS_CODECS:
            raise UsageError(
                f"offsets.topic.compression.codec={self.offsets_topic_compression_codec}: give 0 (none), 1 (gzip) or "
                "4 (zstd); snappy and lz4 are not written here"
            )
        self._owned()

    def _check_consumer_groups(self) -> None:
        if self.group_consumer_migration_policy.lower() not in MIGRATION_POLICIES:
            raise UsageError(
                f"group.consumer.migration.policy={self.group_consumer_migration_policy}: give one of "
                f"{', '.join(MIGRATION_POLICIES)}"
            )
        for kind in ("group_consumer", "group_share"):
            self._check_between(kind, "session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms")
            heartbeat, session = (getattr(self, f"{kind}_{what}") for what in _GROUP_TIMES)
            if heartbeat >= session:
                first, second = (kafka_name(f"{kind}_{what}") for what in _GROUP_TIMES)
                raise UsageError(f"{first}={heartbeat}: give less than {second} ({session})")

    def _check_between(self, kind: str, *names: str) -> None:
        """Options that bound what a group may set bound the broker's own value too."""
        for what in names:
            value = getattr(self, f"{kind}_{what}")
            least, most = (getattr(self, f"{kind}_{end}_{what}") for end in ("min", "max"))
            if not least <= value <= most:
                name, low, high = (kafka_name(f"{kind}_{end}{what}") for end in ("", "min_", "max_"))
                raise UsageError(
                    f"{name}={value}: give a number from {low} ({least}) to {high} ({most}), or change these too"
                )

    @property
    def can_upgrade_groups(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def can_downgrade_groups(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")

    @property
    def owned_offsets_partitions(self) -> frozenset[int]:
        """Partitions of `__consumer_offsets`."""
        return self._owned()

    def _owned(self) -> frozenset[int]:
        count = self.offsets_topic_num_partitions
        text = self.keylane_owned_offsets_partitions
        if not text:
            return frozenset(range(count))
        owned: set[int] = set()
        for piece in text.split(","):
            first, _, last = piece.strip().partition("-")
            if not first.isdigit() or not (last or first).isdigit() or not int(first) <= int(last or first) < count:
                raise UsageError(
                    f"keylane.owned.offsets.partitions={text}: {piece!r} is no partition or range of them from 0 to "
                    f"{count - 1} (offsets.topic.num.partitions={count}); give some like 0-24,30"
                )
            owned.update(range(int(first), int(last or first) + 1))
        return frozenset(owned)

    def listener(self, host: str | None = None, port: int | None = None) -> Listener:
        """Where to listen: `listeners`, with this host or port instead where one is given. Raises `UsageError`."""
        found = Listener("PLAINTEXT", DEFAULT_HOST, DEFAULT_PORT)
        if self.listeners:
            found = parse_listener("listeners", self.listeners, least_port=0)
        return Listener(found.protocol, host or found.host, found.port if port is None else port)

    def advertised_address(self) -> tuple[str, int] | None:
        """Host and port of `advertised.listeners`, or None. Raises `UsageError`."""
        if not self.advertised_listeners:
            return None
        told = parse_listener("advertised.listeners", self.advertised_listeners, least_port=1)
        if told.protocol != self.listener().protocol or told.host in EVERY_ADDRESS:
            raise UsageError(
                f"advertised.listeners={self.advertised_listeners!r}: give {self.listener().protocol}://host:port, as "
                "the listener is, with an address that clients can connect to"
            )
        return told.host, told.port

    def connection_limits(self) -> dict[str, int]:
        """`max.connections.per.ip.overrides` by address. Raises `UsageError`."""
        limits = {}
        for piece in filter(None, self.max_connections_per_ip_overrides.split(",")):
            host, _, count = piece.strip().rpartition(":")
            if not host or not count.isdigit():
                raise UsageError(
                    f"max.connections.per.ip.overrides={self.max_connections_per_ip_overrides}: {piece!r} is not "
                    "ADDRESS:COUNT"
                )
            limits[host.strip("[]")] = int(count)
        return limits


class Listener(NamedTuple):
    """An address with what is spoken there."""

    protocol: str
    host: str
    port: int

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def __str__(self) -> str:
        return f"{self.protocol}://{self.host}:{self.port}"


def parse_listener(option: str, text: str, *, least_port: int) -> Listener:
    """`PROTOCOL://host:port`; without a host 127.0.0.1. Raises `UsageError`."""
    protocol, _, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if (
        protocol not in PROTOCOLS
        or not colon
        or "," in host
        or not port.isdigit()
        or not least_port <= int(port) < 65_536
    ):
        raise UsageError(
            f"{option}={text!r}: give one listener PROTOCOL://host:port, PROTOCOL one of {', '.join(PROTOCOLS)}"
        )
    return Listener(protocol, host.strip("[]") or DEFAULT_HOST, int(port))


def kafka_name(field_name: str) -> str:
    """`log_segment_bytes` -> `log.segment.bytes`."""
    return field_name.replace("_", ".")


def parse_config(settings: Mapping[str, str]) -> BrokerConfig:
    """A config from Kafka-named settings. Raises `UsageError` that names an unknown option or a wrong value."""
    return with_settings(BrokerConfig(), settings)


def with_settings(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """The same config, but for these settings. Raises `UsageError` as `parse_config`."""
    known = {kafka_name(option.name): option for option in fields(BrokerConfig)}
    values: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in known:
            hint = did_you_mean(name, known) or f"known options are {', '.join(sorted(known))}"
            raise UsageError(f"{name}: this broker does not offer this option; {hint}")
        values[known[name].name] = _convert(name, text.strip(), type(known[name].default))
    return replace(config, **values)


def _convert(name: str, text: str, wanted: type) -> Any:
    if wanted is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(f"{name}={text}: give true or false")
    if wanted in (int, float):
        try:
            return wanted(text)
        except ValueError:
            what = "a whole number" if wanted is int else "a number"
            raise UsageError(f"{name}={text}: give {what}") from None
    return text


def parse_properties(text: str, origin: str) -> dict[str, str]:
    """Settings from the lines `name=value` of a properties file; `#` and `!` start comments."""
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise UsageError(f"{origin} line {number}: not name=value (the line is not shown: it may hold a password)")
        settings[name.strip()] = value.strip()
    return settings
