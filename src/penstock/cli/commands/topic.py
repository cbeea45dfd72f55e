"""`penstock topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from penstock.adapter.topics import TIERING, shown_policy
from penstock.api import TopicInfo
from penstock.cli.arguments import AsJson, NewTopicName, TopicName
from penstock.cli.output import (
    Cell,
    count_text,
    print_fields,
    print_json,
    print_line,
    print_table,
    size_text,
)
from penstock.cli.quantities import read_duration_ms, read_size
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError
from penstock.meta import TieringPolicy
from penstock.settings import redact

app: Final = typer.Typer(
    help="Create, list, describe, alter and delete topics.", no_args_is_help=True
)

Options = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Topic option (repeatable): retention_ms=3d, retention_bytes=10GiB, flush=sync, "
        "cleanup=compact, tiering=on, tiering.local_retention_ms=12h, … The value none resets to "
        "the node's default; a retention of -1 means no limit.",
    ),
]
Partitions = Annotated[
    int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")
]


def read_options(given: list[str]) -> dict[str, object]:
    """Parse `name=value` pairs: numbers, true, false and none as such, durations and sizes
    (`retention_ms=3d`, `retention_bytes=10GiB`) as numbers, other values as text."""
    options: dict[str, object] = {}
    for pair in given:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise BadRequestError(f"{pair!r} is not a topic option; write NAME=VALUE")
        word = {"none": "null", "None": "null"}.get(text, text)
        try:
            options[name] = msgspec.json.decode(word)
        except msgspec.DecodeError:
            options[name] = _quantity(name, text)
    return options


def _quantity(name: str, text: str) -> object:
    """Return a duration or a size as a number, for options that take one."""
    if not text[:1].isdigit():
        return text
    if name.endswith("_ms"):
        return read_duration_ms(text)
    return read_size(text) if name.endswith(("_bytes", "_size", "_size_max")) else text


Replication = Annotated[
    int | None,
    typer.Option("--replication", min=1, help="Replicas of each record, on different nodes."),
]
MinInSync = Annotated[
    int | None,
    typer.Option(
        "--min-insync",
        min=1,
        help="Replicas that must have a record before it is committed; default: a majority.",
    ),
]


@app.command()
def create(
    name: NewTopicName,
    partitions: Partitions = None,
    storage: Annotated[
        str | None, typer.Option("--storage", help="Storage engine: memory, rocksdb or segment.")
    ] = None,
    replication: Replication = None,
    min_insync: MinInSync = None,
    options: Options = [],  # noqa: B006 - typer's way to say "none given"
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed without a change if the topic exists.")
    ] = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Create a topic.

    penstock topic create orders -p 3 --set retention_ms=3d --set partitioner=key

    penstock topic create logs --set tiering=on --set tiering.local_retention_ms=1h

    penstock topic create payments --set queue=batch    (stores Kafka batches unchanged)

    penstock topic create orders --replication 3        (in a cluster of at least three nodes)
    """
    chosen = read_options(options)
    if replication is not None:
        chosen["replication"] = replication
    if min_insync is not None:
        chosen["min_insync"] = min_insync
    if storage is not None:
        chosen["storage"] = storage
    with open_target(server, data, namespace, create=True) as store:
        if exist_ok and name in store.topics():
            print_line(f"{name} already exists")
            return
        info = store.create_topic_info(name, partitions, chosen)
    partition_text = count_text(info.partition_count, "partition")
    print_line(f"created {name}: {partition_text}, {info.storage}")


@app.command("list")
def list_topics(
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """List the topics of a namespace."""
    with open_target(server, data, namespace) as store:
        topics = store.list_topics()
    if as_json:
        print_json(map(_json_info, topics))
        return
    rows = [(info.name, info.partition_count, info.storage, info.topic_id) for info in topics]
    print_table(("topic", "#partitions", "storage", "id"), rows)


@app.command()
def describe(
    name: TopicName,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Show the options of a topic and the offsets of its partitions."""
    with open_target(server, data, namespace) as store:
        info = store.topic(name).describe()
    if as_json:
        print_json([_json_info(info)])
        return
    _print_info(info)


def _json_info(info: TopicInfo) -> dict[str, object]:
    """Return a topic with named options; they are stored as arrays without names."""
    config = msgspec.structs.asdict(info.config)
    if info.config.tiering is not None:
        config[TIERING] = msgspec.structs.asdict(_without_secrets(info.config.tiering))
    return {**msgspec.structs.asdict(info), "config": config}


def _without_secrets(policy: TieringPolicy) -> TieringPolicy:
    """Return a policy whose address has no user, password or key in it."""
    return msgspec.structs.replace(policy, provider=redact(policy.provider))


def _print_info(info: TopicInfo) -> None:
    config = msgspec.structs.asdict(info.config)
    fields = [("id", info.topic_id), ("storage", info.storage)]
    tiering = config.pop(TIERING)
    fields += [(name, str(value)) for name, value in config.items() if value is not None]
    fields += shown_policy(_without_secrets(tiering)) if tiering is not None else []
    print_fields(fields, title=info.name)
    has_tier = any(partition.log_start is not None for partition in info.partitions)
    rows: list[tuple[Cell, ...]] = [
        (
            partition.partition,
            partition.earliest,
            *((partition.log_start or partition.earliest,) if has_tier else ()),
            partition.commit,
            partition.latest,
            size_text(partition.size),
            partition.segments,
        )
        if not partition.problem
        else (partition.partition, *("?" for _ in range(has_tier + 4)), partition.segments)
        for partition in info.partitions
    ]
    in_log = ("#in log from",) if has_tier else ()
    columns = ("#partition", "#earliest", *in_log, "#commit", "#latest", "#size", "#segments")
    print_table(columns, rows)
    for partition in info.partitions:
        if partition.problem:
            print_line(f"partition {partition.partition}: {partition.problem}")


@app.command()
def alter(
    name: TopicName,
    partitions: Partitions = None,
    replication: Replication = None,
    min_insync: MinInSync = None,
    options: Options = [],  # noqa: B006 - typer's way to say "none given"
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Change options of a topic, or add partitions. Other options keep their values.

    penstock topic alter logs --set tiering.upload_interval_ms=5000 --set tiering.upload_bytes=none

    penstock topic alter orders --replication 3        (`cluster reassign --status` shows progress)
    """
    chosen = read_options(options)
    if replication is not None:
        chosen["replication"] = replication
    if min_insync is not None:
        chosen["min_insync"] = min_insync
    with open_target(server, data, namespace) as store:
        info = store.alter_topic_info(name, partitions, chosen)
    print_line(f"altered {name}: {count_text(info.partition_count, 'partition')}")


@app.command()
def delete(
    name: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Delete a topic with its records and the offsets of its consumer groups."""
    if not yes:
        typer.confirm(f"Delete topic {name} and all of its records?", abort=True)
    with open_target(server, data, namespace) as store:
        store.topic(name).delete()
    print_line(f"deleted {name}")
