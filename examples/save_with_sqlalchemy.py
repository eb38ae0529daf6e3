"""Saves customers with SQLAlchemy, each in a session; a database that restarts costs attempts, and no record."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import keylane as kl

ADDRESS = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[str] = mapped_column(primary_key=True)
    city: Mapped[str]


@contextmanager
def engine() -> Iterator[Engine]:
    made = create_engine(ADDRESS, pool_size=16, pool_pre_ping=True)  # as many as there are threads
    try:
        yield made
    finally:
        made.dispose()


@contextmanager
def unit_of_work(record: kl.Record, context: kl.Context[Engine]) -> Iterator[Session]:
    with Session(context.resource) as session, session.begin():  # commits, or rolls back when the handler raises
        yield session


def save(record: kl.Record, context: kl.Context[Engine]) -> None:
    session: Session = context.around
    key = record.key.decode()
    if record.value is not None:
        session.merge(Customer(id=key, city=json.loads(record.value)["city"]))
    elif customer := session.get(Customer, key):
        session.delete(customer)


customers = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "customers"},
    topics=["customers"],
    handler=save,
    resource=engine,
    around=unit_of_work,
    on_exhausted=kl.DeadLetter("customers.dead"),
    offset_reset="earliest",
)
