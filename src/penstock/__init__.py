"""Penstock: a message store for Python.

    import penstock

    with penstock.open("data") as store:
        orders = store.create_topic("orders", partitions=3)
        orders.write(b"3 apples", key=b"o-17", tags=["eu"])
        for message in store.consumer("billing", ["orders"]):
            print(message.value)

Importing the package loads nothing: each name is loaded with its first use, so that programs which
only read records stay small. The types are in `__init__.pyi`.
"""

from importlib import import_module

_HOMES = {
    "Acks": "engine.contract",
    "AlreadyExistsError": "errors",
    "Consumer": "api",
    "GroupFencedError": "errors",
    "GroupNotEmptyError": "errors",
    "Location": "record",
    "Message": "adapter.locations",
    "PartialWriteError": "errors",
    "Producer": "record",
    "Record": "record",
    "Store": "api",
    "StoreError": "errors",
    "StoredRecord": "record",
    "TieringPolicy": "api",
    "Topic": "api",
    "TopicInfo": "api",
    "UnknownTopicError": "errors",
    "connect": "node.connect_store",
    "open": "node.open_store",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
