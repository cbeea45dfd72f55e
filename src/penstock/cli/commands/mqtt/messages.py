"""`penstock mqtt publish` and `penstock mqtt subscribe`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Final

import typer

from penstock.brokers.mqtt.client import (
    ClientOptions,
    MqttClient,
    Properties,
    Publish,
    SubscriptionRequest,
)
from penstock.cli.arguments import AsJson
from penstock.cli.commands.mqtt.target import (
    DEFAULT_ADDRESS,
    Broker,
    CaFile,
    PasswordFile,
    User,
    options_of,
    run,
    write_line,
)
from penstock.cli.output import count_text, json_bytes, print_json
from penstock.errors import BadRequestError, DeadlineError

MESSAGE_SIZE_MAX: Final = 256 << 20

Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")]
ClientId = Annotated[
    str, typer.Option("--client-id", "-i", help="Client id; without one the broker assigns it.")
]


def publish(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to publish to.", show_default=False)
    ],
    message: Annotated[
        str | None,
        typer.Argument(metavar="[MESSAGE]", help="Message; without it, each line of stdin is one."),
    ] = None,
    qos: Qos = 1,
    retain: Annotated[
        bool, typer.Option("--retain", "-r", help="Keep the message for later subscribers.")
    ] = False,
    expiry_s: Annotated[
        int | None, typer.Option("--expiry", min=1, metavar="SECONDS", help="Lifetime.")
    ] = None,
    client_id: ClientId = "",
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """Publish a message, or each line of stdin.

    penstock mqtt publish plant/1/state on --retain
    """
    options = replace(options_of(broker, user, password_file, ca_file), client_id=client_id)
    properties = None if expiry_s is None else Properties(message_expiry_interval=expiry_s)
    count = run(_publish(options, topic, message, qos, retain, properties))
    if message is None:
        typer.echo(f"published {count_text(count, 'message')}", err=True)


async def _publish(
    options: ClientOptions,
    topic: str,
    message: str | None,
    qos: int,
    retain: bool,
    properties: Properties | None,
) -> int:
    count = 0
    async with MqttClient(options) as client:
        lines = (
            (line.rstrip(b"\n") for line in sys.stdin.buffer)
            if message is None
            else [message.encode("utf-8", "surrogateescape")]
        )
        for payload in lines:
            await client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
            count += 1
    return count


def subscribe(
    filters: Annotated[
        list[str],
        typer.Argument(metavar="FILTER...", help="Topic filters.", show_default=False),
    ],
    qos: Qos = 1,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Exit after this many messages.")
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="Exit when none arrives so long."),
    ] = None,
    has_topic: Annotated[
        bool, typer.Option("--topic", "-t", help="Print the topic before each message.")
    ] = False,
    no_retained: Annotated[
        bool, typer.Option("--no-retained", help="Leave out retained messages.")
    ] = False,
    client_id: ClientId = "",
    session_s: Annotated[
        int,
        typer.Option(
            "--session",
            min=0,
            metavar="SECONDS",
            help="Keep the session so long after the end, so that the next call continues; "
            "needs --client-id.",
        ),
    ] = 0,
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """Print messages until Ctrl-C, one per line.

    penstock mqtt subscribe 'plant/+/state' --topic

    penstock mqtt subscribe '$replay/1h/plant/#' --json
    """
    if session_s and not client_id:
        raise BadRequestError("--session needs --client-id: a session belongs to a client id")
    options = replace(
        options_of(broker, user, password_file, ca_file),
        client_id=client_id,
        clean_start=not session_s,
        session_expiry_s=session_s,
        packet_size_max=MESSAGE_SIZE_MAX,
    )
    requests = [
        SubscriptionRequest(
            topic_filter, qos, retain_as_published=True, retain_handling=2 if no_retained else 0
        )
        for topic_filter in filters
    ]
    with suppress(DeadlineError):
        run(_subscribe(options, requests, limit, timeout_s, _Printer(has_topic, as_json)))


class _Printer:
    def __init__(self, has_topic: bool, as_json: bool) -> None:
        self._has_topic: Final = has_topic
        self._as_json: Final = as_json

    def show(self, message: Publish) -> None:
        if self._as_json:
            print_json([_json_message(message)])
        elif self._has_topic:
            write_line(message.topic.encode() + b" " + message.payload)
        else:
            write_line(message.payload)


async def _subscribe(
    options: ClientOptions,
    requests: Sequence[SubscriptionRequest],
    limit: int | None,
    timeout_s: float | None,
    printer: _Printer,
) -> None:
    async with MqttClient(options) as client:
        for request in requests:
            await client.subscribe(request)
        count = 0
        while limit is None or count < limit:
            printer.show(await client.next_message(timeout_s))
            count += 1


def _json_message(message: Publish) -> dict[str, object]:
    shown: dict[str, object] = {
        "topic": message.topic,
        "payload": json_bytes(message.payload),
        "qos": message.qos,
        "retain": message.retain,
    }
    properties = message.properties
    if properties is not None:
        named = {
            "content_type": properties.content_type,
            "response_topic": properties.response_topic,
            "correlation_data": json_bytes(properties.correlation_data),
            "message_expiry_interval": properties.message_expiry_interval,
            "user_properties": properties.user_properties,
            "subscription_identifiers": properties.subscription_identifiers,
        }
        shown["properties"] = {name: value for name, value in named.items() if value is not None}
    return shown
