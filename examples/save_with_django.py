"""Saves customers with Django's ORM, each in a transaction; a database that restarts costs attempts, and no record."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.conf import settings
from django.db import close_old_connections, models, transaction

import keylane as kl

DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "postgres",
    "USER": "postgres",
    "HOST": "127.0.0.1",
    "PORT": 5432,
    "CONN_MAX_AGE": 60,  # seconds that a thread keeps its connection
    "CONN_HEALTH_CHECKS": True,
}
settings.configure(DATABASES={"default": DATABASE})  # your project has DJANGO_SETTINGS_MODULE, and its own models
django.setup()


class Customer(models.Model):
    id = models.TextField(primary_key=True)
    city = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "customers"


@contextmanager
def unit_of_work(record: kl.Record) -> Iterator[None]:
    close_old_connections()  # as Django does around a request: a connection that died is made anew
    try:
        with transaction.atomic():
            yield
    finally:
        close_old_connections()


def save(record: kl.Record) -> None:
    key = record.key.decode()
    if record.value is None:
        Customer.objects.filter(id=key).delete()
    else:
        Customer.objects.update_or_create(id=key, defaults={"city": json.loads(record.value)["city"]})


customers = kl.Pipeline(
    kafka={"bootstrap.servers": "127.0.0.1:9092", "group.id": "customers"},
    topics=["customers"],
    handler=save,
    around=unit_of_work,
    on_exhausted=kl.DeadLetter("customers.dead"),
    offset_reset="earliest",
)
