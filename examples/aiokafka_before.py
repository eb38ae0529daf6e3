"""A consumer as it is: one order at a time, with aiokafka."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def score(value: bytes) -> bytes:
    await asyncio.sleep(0.001)  # a slow call
    return value.upper()


async def main() -> None:
    servers = "127.0.0.1:9092"
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=servers, group_id="moved", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    async with consumer, AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for _ in range(700):
            order = await consumer.getone()
            await producer.send_and_wait("orders.moved", await score(order.value), key=order.key)
            await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main())
