"""An application of FastStream's, as it is: nothing here knows of keylane."""

from typing import Annotated

from faststream import Depends, FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel


class Order(BaseModel):
    customer: str
    amount: float


class Scored(Order):
    score: float


broker = KafkaBroker("127.0.0.1:9092")
app = FastStream(broker)


async def factor() -> float:
    return 2.0


@broker.subscriber("orders.placed", group_id="scoring-placed")
@broker.publisher("orders.placed.scored")
async def score(order: Order, factor: Annotated[float, Depends(factor)]) -> Scored:
    return Scored(customer=order.customer, amount=order.amount, score=order.amount * factor)
