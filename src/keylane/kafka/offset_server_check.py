"""Are the servers at `offsets.servers` what a pipeline takes them for? Asked once, before it joins its group.

A broker of Apache Kafka there would take every commit without an error, and offset servers of another cluster tell a
member of topics that are not the ones that it reads.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from keylane.errors import UsageError
from keylane.kafka.link import Link, addresses_of
from keylane.kafka.login import before_login_of
from keylane.kafka.places import SERVERS, for_groups
from keylane.pipeline import OFFSETS_SERVERS
from keylane.telling import logger_of
from keylane.wire.own_apis import BEGIN_FORWARDING, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logger_of("keylane.kafka")

ASK_S = 5.0
"""How long one server is asked what it offers."""


class Asked(Protocol):
    """Who asks some servers."""

    def cluster_id(self) -> str:
        """Raises `BrokerUnavailableError`."""
        ...


def check_offset_servers(kafka: Mapping[str, object], of_groups: Asked, of_records: Asked) -> bool:
    """Whether it is known that there are offset servers (not with a login that only librdkafka has).

    Raises `UsageError` for servers that are none, or of another cluster, and `BrokerUnavailableError` when none
    answers. `of_groups` and `of_records` ask the ones and the others."""
    servers = kafka[OFFSETS_SERVERS]
    cluster = of_groups.cluster_id()
    try:
        has_own_apis = _offers(for_groups(kafka))
    except UsageError as error:  # a login that librdkafka has and keylane has not
        logger.warning("what the servers at %r offer cannot be asked: %s", servers, error)
        has_own_apis = None
    else:
        if has_own_apis is False:
            raise UsageError(
                f"kafka[{OFFSETS_SERVERS!r}]={servers!r}: there is no offset server, and commits would go to that "
                "broker: give the addresses of `keylane offsets serve`"
            )
    here = of_records.cluster_id()
    if cluster != here:
        raise UsageError(
            f"kafka[{OFFSETS_SERVERS!r}]={servers!r} belong to the cluster {cluster!r}, and kafka[{SERVERS!r}]="
            f"{kafka[SERVERS]!r} to {here!r}: give offset servers whose --log is the cluster of the records"
        )
    return bool(has_own_apis)


def _offers(settings: Mapping[str, object]) -> bool | None:
    """Whether the first one that answers has the offset servers' own API; None when none does. Raises `UsageError`."""
    login = before_login_of(settings)
    for address in addresses_of(settings):
        try:
            with closing(Link(address, login, ASK_S)) as link:
                return link.offers(BEGIN_FORWARDING, VERSION)
        except OSError as error:
            logger.info("offset server %s:%d: %s", *address, error)
    return None
