"""What an offset server tells of itself to who collects metrics, purely: its state, as named metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from keylane.metrics import Family, Sample

if TYPE_CHECKING:
    from keylane.flow.workers import Histogram
    from keylane.offset_servers.between import Counts

PREFIX = "keylane_offset_server_"


class State(NamedTuple):
    """Of one server, as it knows itself and the others."""

    requests: Counts
    appends: Histogram
    """From sending a batch to the log until all replicas in sync have it."""
    refused: int
    """Batches that the log has refused."""
    deposed: int
    """Leaderships that the log has ended."""
    leading: int
    """Offsets partitions that are served here."""
    loading: int
    """Those that are about to be."""
    partitions: int
    """All of the log's topic."""
    without_leader: int
    """Those that no server leads, for all that this one knows."""
    servers: int
    """In the servers' group."""
    connections: int
    """Of clients and of other servers."""
    trouble: str | None
    """Why it does not know the others now; None while it does."""

    @property
    def unready(self) -> str | None:
        """Why clients had better ask another server first; None while they need not."""
        if self.trouble is not None:
            return self.trouble
        if self.loading:
            return f"it loads {self.loading} of {self.leading + self.loading} offsets partitions that it is to lead"
        return None


def server_families(state: State) -> list[Family]:
    """A server's metrics."""
    following = state.partitions - state.leading - state.loading
    by_role = {"leading": state.leading, "loading": state.loading, "following": following}
    by_way = state.requests._asdict()
    return [
        Family(
            f"{PREFIX}requests",
            "counter",
            "Requests of groups and offsets: answered here, or forwarded to the server that leads the group",
            tuple(Sample(count, {"way": way}) for way, count in by_way.items()),
        ),
        Family(
            f"{PREFIX}partitions",
            "gauge",
            "Offsets partitions that are led here, loaded to be, or followed",
            tuple(Sample(count, {"role": role}) for role, count in by_role.items()),
        ),
        _one("append_seconds", "histogram", "From sending a batch until all replicas in sync have it", state.appends),
        _one("appends_refused", "counter", "Batches that the log refused", state.refused),
        _one("deposed", "counter", "Leaderships of offsets partitions that the log has ended", state.deposed),
        _one("partitions_without_leader", "gauge", "Offsets partitions that no server leads", state.without_leader),
        _one("servers", "gauge", "Servers in the servers' group", state.servers),
        _one("connections", "gauge", "Connections of clients and of other servers", state.connections),
    ]


def _one(name: str, kind: Literal["counter", "gauge", "histogram"], text: str, value: float | Histogram) -> Family:
    return Family(PREFIX + name, kind, text, (Sample(value),))
