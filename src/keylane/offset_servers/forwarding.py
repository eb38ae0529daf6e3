"""Requests for groups that another server leads: forwarded to it, and its answers passed back unchanged (S1: any server
takes any request).

The idea: a client's connection has one to each leader that its requests are for, on which they are asked in order; who
waits for long (JoinGroup, SyncGroup) holds up its own client alone, and ends with it. Such a connection begins with
BeginForwarding: what comes on it is answered by whom it reaches, so no request goes from server to server. Nothing is
sent twice: what a leader has not answered when its connection ends is refused with NOT_COORDINATOR, or told that its
outcome is not known. Nothing is sent late: a server that stood still refuses what has waited for it meanwhile, since
its client may have gone on elsewhere, and an older commit would come behind a newer one.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from keylane.broker.dispatch import MalformedRequestError, decode_request, response_frame, seen_through
from keylane.kafka.fenced_log import steady_s
from keylane.kafka.link import login_requests
from keylane.offset_servers.between import Counts, begin_forwarding
from keylane.offset_servers.coordinators import Lost, Nobody
from keylane.offset_servers.group_requests import divided, groups_of, joined, key_and_version, of_leaders
from keylane.offset_servers.upstream import SIZE, Upstream
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from keylane.broker.dispatch import Api, Call
    from keylane.broker.node import Node
    from keylane.broker.server import Client
    from keylane.broker.sessions import Session
    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address
    from keylane.offset_servers.upstream import Greeting

    Told = Callable[[list[bytes] | None], None]

logger = logger_of("keylane.offsets")

ANSWER_S = 25.0
"""How long a leader may take: less than the request time-outs of clients, of which Java's 30 s is the shortest. It is
longer than a broker of the log takes to be replaced."""
MOVED_S = 3.0
"""How long clients of a group that has moved are told so. All servers know the new leader within a second or two."""
BEAT_S = 0.5
STOOD_STILL_S = 2.0
"""A server whose turns are so far apart was frozen: clients of librdkafka give it up after 5 s here, none within 2."""
REFUSES_S = 1.0
"""So long from then on nothing is forwarded: what has waited is read by then."""
TELL_S = 10.0
"""So often it is told of one server that it leaves requests unanswered: each client that waits for it meets that."""
JOIN_GROUP = 11


class Leaders(Protocol):
    """Who leads what, as this server knows it."""

    def partition_of(self, group: str) -> int: ...
    def leads(self, partition: int) -> bool:
        """Whether this server does, or is about to."""
        ...

    def other_leader(self, partition: int) -> Address | None:
        """The other server that does; None while none is known."""
        ...


@dataclass
class Forwarding:
    """What all connections of a server have in common."""

    leaders: Leaders
    node: Node
    """For the handlers, of groups that are led here."""
    login: Login | None
    """For the other servers; None: nothing is forwarded."""
    answered: int = 0
    forwarded: int = 0
    clock: Callable[[], float] = steady_s
    """Seconds that go on while the machine sleeps."""
    beat_at: float = field(init=False)
    """When this server was last seen to run."""
    refuses_until: float = field(init=False, default=-math.inf)
    links: set[_Link] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    told: dict[Address, tuple[float, int]] = field(default_factory=dict)
    """By server: when it was last told that it leaves requests unanswered, and how many it left since."""
    apis: dict[int, Api] = field(default_factory=of_leaders)

    def __post_init__(self) -> None:
        self.beat_at = self.clock()

    @property
    def counts(self) -> Counts:
        return Counts(self.answered, self.forwarded)

    def beat(self) -> None:
        """To be called each `BEAT_S`, by the event loop."""
        if self.stands_still():
            logger.warning("this server stood still for %.1f s: what waited is refused", self.clock() - self.beat_at)
            self.refuses_until = self.clock() + REFUSES_S
        self.beat_at = self.clock()

    def stands_still(self) -> bool:
        """Whether it has just gone on after it was frozen."""
        return self.clock() - self.beat_at > STOOD_STILL_S

    @property
    def refuses(self) -> bool:
        """Whether what comes now may have waited for long."""
        return self.stands_still() or self.clock() < self.refuses_until

    def accept(self, session: Session, host: str) -> int:
        """Another server's client is behind this connection, if it is a server's. An error code, or NONE."""
        is_server = session.user is None or (self.login is not None and session.user == self.login.username)
        if not is_server:
            return codes.CLUSTER_AUTHORIZATION_FAILED
        session.forward_from(host)
        return codes.NONE

    def unanswered(self, server: Address, count: int, reason: str) -> None:
        """This server leaves so many requests without an answer."""
        now = self.clock()
        told_at, before = self.told.get(server, (-math.inf, 0))
        if now - told_at < TELL_S:
            self.told[server] = (told_at, before + count)
            return
        self.told[server] = (now, 0)
        since = f" ({before} more since it was told of last)" if before else ""
        logger.warning("server %s:%d leaves %d requests unanswered: %s%s", *server, count, reason, since)

    def see(self, servers: Collection[Address]) -> None:
        """Only these are left: nobody waits for another one."""
        for link in [one for one in self.links if one.address not in servers]:
            link.end("it has left the servers' group")
        self.told = {server: told for server, told in self.told.items() if server in servers}


class _Waiting(NamedTuple):
    """A request on its way."""

    frame: bytes
    told: Told


class _Link:
    """Of a client's connection to one leader."""

    def __init__(
        self,
        forwarding: Forwarding,
        address: Address,
        host: str,
        ended: Callable[[_Link, Sequence[_Waiting]], None],
    ) -> None:
        """`ended` is given what is left without an answer."""
        self._forwarding = forwarding
        self.address = address
        self._host = host
        self._ended = ended
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        assert forwarding.login is not None
        self._login = forwarding.login
        self._upstream = Upstream(lambda: [address], self._login, self._greet, self.end)
        forwarding.links.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the leader may have what was asked."""
        return self._upstream.is_open

    def send(self, frame: bytes, told: Told) -> None:
        self._waiting.append(_Waiting(frame, told))
        self._upstream.send(frame, self._answered)
        if self._timer is None:
            self._await_first()

    def pause(self) -> None:
        self._upstream.pause()

    def resume(self) -> None:
        self._upstream.resume()

    def close(self) -> None:
        """Nobody waits any more."""
        self._forwarding.links.discard(self)
        self._upstream.close()
        if self._timer is not None:
            self._timer.cancel()

    def end(self, reason: str) -> None:
        """Nothing more comes."""
        self.close()
        if self._waiting:
            self._forwarding.unanswered(self.address, len(self._waiting), reason)
        self._ended(self, self._waiting)

    def _greet(self) -> Greeting:
        yield from login_requests(self._login)
        yield from begin_forwarding(self._host)

    def _answered(self, frame: bytes) -> None:
        told = self._waiting.popleft().told
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._await_first()
        told([SIZE.pack(len(frame)), frame])

    def _await_first(self) -> None:
        """Its time runs from now on: before, it stood behind another one."""
        within_s = ANSWER_S + _rebalance_s(self._waiting[0].frame, self._forwarding.apis)
        call = functools.partial(self.end, f"no answer within {within_s:g} s")
        self._timer = asyncio.get_running_loop().call_later(within_s, call)


def _rebalance_s(frame: bytes, apis: dict[int, Api]) -> float:
    """How long a JoinGroup may wait for the other members; 0 for other requests."""
    key, version = key_and_version(frame)
    if key != JOIN_GROUP:
        return 0.0
    try:
        request = decode_request(frame, "", apis).request
    except MalformedRequestError:
        return 0.0
    wait = request.rebalance_timeout if version >= 1 else request.session_timeout
    seconds: float = wait.total_seconds()
    return max(seconds, 0.0)


class Forwarder:
    """Of one client's connection: a `Relay`."""

    def __init__(self, forwarding: Forwarding, client: Client) -> None:
        self._forwarding = forwarding
        self._client = client
        self._links: dict[Address, _Link] = {}
        self._here_until: dict[int, float] = {}
        """Offsets partitions for which this client was answered here, and so takes this server for their coordinator:
        until when it is told the truth; for ever while they are led here."""
        self._is_closed = False

    def take(self, frame: bytes, told: Told) -> bool:
        """Forward it, unless it is for groups that are led here, or by nobody that is known. Raises
        `MalformedRequestError`."""
        key, version = key_and_version(frame)
        api = self._forwarding.apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            return False
        try:
            groups = groups_of(api, version, frame)
        except (ValueError, IndexError):
            return False  # whoever decodes it says what is wrong
        leaders = [self._leader(group) for group in groups]
        if not any(leaders):
            self._forwarding.answered += 1
            return False
        if self._forwarding.refuses:
            self._answer(NOBODY, frame, told)
            return True
        self._forwarding.forwarded += 1
        if len(set(leaders)) == 1:
            self._ask(leaders[0], frame, told)
        else:
            self._divide(self._decode(frame), frame, groups, leaders, told)
        return True

    def pause(self) -> None:
        for link in self._links.values():
            link.pause()

    def resume(self) -> None:
        for link in self._links.values():
            link.resume()

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        for link in self._links.values():
            link.close()

    def _leader(self, group: str) -> Address | None:
        """Who is asked; None: this server answers, if only that it does not lead the group.

        A client that was answered here before is told so for a while, when the group has moved: it asks FindCoordinator
        then, or it goes on here, and is forwarded.
        """
        known = self._forwarding
        if known.login is None or self._client.session.forwarded_from is not None:
            return None
        partition = known.leaders.partition_of(group)
        if known.leaders.leads(partition):
            self._here_until[partition] = math.inf
            return None
        if partition in self._here_until:
            now = asyncio.get_running_loop().time()
            until = self._here_until[partition] = min(self._here_until[partition], now + MOVED_S)
            if now < until:
                return None
        return known.leaders.other_leader(partition)

    def _ask(self, leader: Address | None, frame: bytes, told: Told) -> None:
        if leader is None:
            self._answer(self._forwarding.node, frame, told)
            return
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = _Link(self._forwarding, leader, self._client.host, self._ended)
        link.send(frame, told)

    def _divide(
        self, call: Call, frame: bytes, groups: Sequence[str], leaders: Sequence[Address | None], told: Told
    ) -> None:
        """Ask each leader for its groups."""
        api, version = call.api, call.header.api_version
        of_leader: dict[Address | None, list[int]] = {}
        for number, leader in enumerate(leaders):
            of_leader.setdefault(leader, []).append(number)
        frames = divided(api, version, frame, list(of_leader.values()))
        answers: list[bytes] = []

        def collect(parts: list[bytes] | None) -> None:
            assert parts is not None
            answers.append(b"".join(parts)[SIZE.size :])
            if len(answers) == len(frames):
                whole = joined(api, version, groups, answers)
                told([SIZE.pack(len(whole)), whole])

        for leader, part in zip(of_leader, frames, strict=True):
            self._ask(leader, part, collect)

    def _ended(self, link: _Link, unanswered: Sequence[_Waiting]) -> None:
        """A link is not used again; what its leader has not answered is refused."""
        del self._links[link.address]
        for frame, told in unanswered:
            self._answer(LOST if link.is_open else NOBODY, frame, told)

    def _answer(self, node: Node, frame: bytes, told: Told) -> None:
        """Have this node's handlers answer a request."""
        try:
            call = self._decode(frame)
        except MalformedRequestError as error:
            logger.warning("%s: %s; closing the connection", self._client.host, error)
            self._client.close()
            return
        found = None if call.api.begin is None else call.api.begin(call.request, call.header, node)
        task = asyncio.get_running_loop().create_task(self._see_through(call, node, found, told))
        self._forwarding.tasks.add(task)
        task.add_done_callback(self._forwarding.tasks.discard)

    async def _see_through(self, call: Call, node: Node, found: object, told: Told) -> None:
        """Tell what was found, or is when a round is over."""
        if call.api.handle is not None:
            found = await call.api.handle(call.request, call.header, node)
        found = await seen_through(found)
        if not self._is_closed:
            told(response_frame(call, found))

    def _decode(self, frame: bytes) -> Call:
        """Raises `MalformedRequestError`."""
        return decode_request(frame, self._client.host, self._forwarding.apis, self._client.session)


class _NobodysNode:
    """Refuses every request for a group."""

    coordinator = Nobody()


class _LostNode:
    """Says of every request that whoever leads its group was lost meanwhile."""

    coordinator = Lost()


NOBODY = cast("Node", _NobodysNode())
LOST = cast("Node", _LostNode())
