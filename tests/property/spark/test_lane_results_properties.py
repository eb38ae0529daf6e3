"""Numbered results between lanes and their driver, over connections that break at any point and partitions that move.

Both ends are the real ones, without their threads; the lanes' consumers and the wire are the test's.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from queue import Empty
from typing import TYPE_CHECKING, Any, Literal, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane import Record, Result
from keylane.flow.outcomes import NOT_RUN
from keylane.records import PlainMessage
from keylane.spark.channel import Moved, Show
from keylane.spark.from_lanes import FromLanes
from keylane.spark.to_driver import ToDriver
from kit.examples import examples
from kit.outputs import Outputs

if TYPE_CHECKING:
    from keylane.consumer.outputs import Delivery, ResultsMoved
    from keylane.consumer.results import Complete
    from keylane.spark.channel import Ships

PARTITIONS, KEYS, RECORDS = 2, 2, 8
MAX_UNREAD = 2
Name = tuple[int, int]
"""Partition and offset."""


@dataclass(eq=False)
class Shown:
    """A record whose handler has succeeded."""

    name: Name
    wanted: bool = True

    def result(self) -> Result:
        return Result(Record(PlainMessage("t", *self.name)), self.name)


class Process:
    """A lane's process: its consumer shows records, one of a key at a time, and wires go both ways in order."""

    def __init__(self, world: World, lane: int) -> None:
        self.world, self.lane = world, lane
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.keeps_up = True
        rule = world.driver.started(lane, self)
        assert rule is not None
        self.rule, self.unseen = rule, rule.waiting
        self.to_driver = ToDriver(rule, self.post)
        self.to_driver.report_to(self.moved)
        self.open: list[Shown] = []

    def post(self, what: Ships) -> None:
        self.up.append(pickle.dumps(what))

    def offer(self, order: Moved | Literal["left"]) -> bool:
        if self.keeps_up:
            self.down.append(pickle.dumps(order))
        return self.keeps_up

    def show(self) -> None:
        """The next of each key, as far as the bound lets."""
        busy = {(one.name[0], one.name[1] % KEYS) for one in self.open}
        for partition in [name for name, lane in self.world.owner.items() if lane == self.lane]:
            for key in range(KEYS):
                left = [n for n in range(key, RECORDS, KEYS) if (partition, n) not in self.world.complete]
                if left and (partition, key) not in busy and self.unseen < self.rule.max_unseen:
                    self.unseen += 1
                    self.open.append(Shown((partition, left[0])))
                    self.to_driver.put(cast("list[Delivery]", self.open[-1:]))

    def moved(self, event: ResultsMoved[Delivery]) -> None:
        self.unseen -= len(event.passed)
        for one, outcome in cast("list[tuple[Shown, Any]]", event.settled):
            self.open.remove(one)
            if one.wanted and outcome is None:
                self.world.completed(one.name)
            else:
                assert outcome in (None, NOT_RUN)

    def give_up(self, partition: int) -> None:
        """A revoke that waited long enough. What its wire has is there before another lane has the partition."""
        for one in self.open:
            one.wanted &= one.name[0] != partition
        self.to_driver.look()
        self.pump()
        while self.up:
            self.arrive()

    def pump(self) -> None:
        try:
            while True:
                self.to_driver.pump(wait=False)
        except Empty:
            pass

    def arrive(self) -> None:
        if self.up:
            message: Ships = pickle.loads(self.up.pop(0))
            if isinstance(message, Show):
                self.world.arrived |= {pickle.loads(data).value for _, data in message.results}
            self.world.driver.spoke(self, message)

    def obey(self) -> None:
        if self.down:
            order: Moved | Literal["left"] = pickle.loads(self.down.pop(0))
            if isinstance(order, Moved):
                self.to_driver.moved(order)
            else:
                self.to_driver.leave()


class World:
    def __init__(self, complete: Complete) -> None:
        self.mode = complete
        self.driver = FromLanes(complete=complete, max_unread=MAX_UNREAD)
        assert self.driver._queue is not None
        self.queue = self.driver._queue
        self.complete: set[Name] = set()
        self.arrived: set[Name] = set()
        self.read_before: list[Name] = []
        self.owner = {partition: partition for partition in range(PARTITIONS)}
        self.lanes = [Process(self, lane) for lane in range(PARTITIONS)]

    def completed(self, name: Name) -> None:
        seen = self.read_before if self.mode == "read" else self.arrived
        assert name in seen, "it is complete, and nobody has it"
        self.complete.add(name)

    def read(self) -> bool:
        try:
            result = self.queue.read(wait=False)
        except Empty:
            return False
        assert result is not None
        self.read_before.append(result.value)
        return True

    def die(self, lane: int, arrives: int) -> None:
        """The connection breaks: so much of what is on its way up arrives, and nothing of what is on its way down."""
        old = self.lanes[lane]
        for _ in range(arrives):
            old.arrive()
        self.driver.went(old)
        self.lanes[lane] = Process(self, lane)

    def step(self, data: st.DataObject) -> None:
        lane = self.lanes[data.draw(st.integers(0, PARTITIONS - 1))]
        match data.draw(st.sampled_from(["work", "work", "arrive", "obey", "read", "read", "die", "move", "stall"])):
            case "work":
                lane.show()
                lane.pump()
            case "arrive":
                lane.arrive()
            case "obey":
                lane.obey()
            case "read":
                self.read()
            case "die":
                self.die(lane.lane, data.draw(st.integers(0, 3)))
            case "move":
                partition = data.draw(st.integers(0, PARTITIONS - 1))
                self.lanes[self.owner[partition]].give_up(partition)
                self.owner[partition] = lane.lane
            case "stall":
                lane.keeps_up = not lane.keeps_up
        self.check()

    def check(self) -> None:
        inputs = {("t", p, n): b"%d" % (n % KEYS) for p in range(PARTITIONS) for n in range(RECORDS)}
        found = Outputs(inputs, [("t", *name) for name in self.read_before])
        assert found.out_of_order("key") == []
        assert all(count <= MAX_UNREAD for count in self.driver._unread.values()), "no more wait than may"

    def settle_down(self) -> None:
        """All that is on its way comes there."""
        for lane in self.lanes:
            lane.keeps_up = True
            lane.pump()
            while lane.up:
                lane.arrive()
            self.driver.go_on(lane)
            while lane.down:
                lane.obey()


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(["read", "handled"]), st.data())
def test_nothing_is_lost_the_order_is_kept_and_so_is_the_bound(complete: Complete, data: st.DataObject) -> None:
    world = World(complete)
    for _ in range(data.draw(st.integers(0, 40))):
        world.step(data)
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)}
    for _ in range(4 * len(everything)):
        for lane in world.lanes:
            lane.show()
        world.settle_down()
        while world.read():
            pass
        world.check()
    assert world.complete == everything
    assert set(world.read_before) == everything
    assert world.driver._unread.total() == 0


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(["read", "handled"]), st.booleans(), st.data())
def test_who_leaves_leaves_the_rest_to_do(complete: Complete, driver_dies: bool, data: st.DataObject) -> None:
    world = World(complete)
    for _ in range(data.draw(st.integers(0, 25))):
        world.step(data)
    if driver_dies:
        for lane in world.lanes:
            lane.to_driver.leave()
    else:
        world.queue.settle()
        world.driver.leave()
        world.queue.leave()
        world.settle_down()
    for lane in world.lanes:
        assert lane.open == [], "nobody waits for what nobody will see"
        lane.show()
        assert lane.open == []
    assert world.complete <= (set(world.read_before) if complete == "read" else world.arrived)
