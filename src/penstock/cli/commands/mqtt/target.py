"""Options that select the MQTT front end of a command, and requests to it."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Coroutine
from dataclasses import replace
from typing import Annotated, Final, TypeVar

import msgspec
import typer

from penstock.brokers.mqtt.client import (
    ClientOptions,
    MqttClient,
    Properties,
    ReasonCode,
    RefusedError,
)
from penstock.errors import BadRequestError, SetupError, StoreError
from penstock.platform.addresses import bare_host

T = TypeVar("T")
DEFAULT_ADDRESS: Final = "127.0.0.1:1883"
_REQUEST: Final = "$penstock/request/"
_REPLY: Final = "$penstock/reply/"
_TIMEOUT_S: Final = 30.0

Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        "-b",
        envvar="PENSTOCK_MQTT_BROKER",
        metavar="HOST:PORT",
        help="Address of the MQTT front end.",
    ),
]
User = Annotated[str | None, typer.Option("--user", "-u", help="User name.", show_default=False)]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File whose first line is the password; without it, PENSTOCK_MQTT_PASSWORD.",
        show_default=False,
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca-file", metavar="FILE", help="Connect with TLS; certificates that verify the broker."
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of lines.")
]


def options_of(
    broker: str, user: str | None, password_file: str | None, ca_file: str | None = None
) -> ClientOptions:
    """Return how to connect; raise `BadRequestError` for an address that is not one."""
    host, separator, port = broker.rpartition(":")
    if not separator:
        host, port = broker, "1883"
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise BadRequestError(f"{broker!r} is not an address; write HOST:PORT")
    return ClientOptions(
        host=bare_host(host),
        port=int(port),
        username=user,
        password=_password(password_file),
        tls=_tls(ca_file),
        response_timeout_s=_TIMEOUT_S,
    )


def run(work: Coroutine[None, None, T]) -> T:
    """Run a command to its end."""
    return asyncio.run(work)


def request(options: ClientOptions, operation: str, arguments: dict[str, object]) -> list[Item]:
    """Return the items of an answer; raise what the front end answers instead."""
    return run(_request(options, operation, arguments))


Item = dict[str, object]


async def _request(
    options: ClientOptions, operation: str, arguments: dict[str, object]
) -> list[Item]:
    async with MqttClient(replace(options, client_id="")) as client:
        properties = client.connack.properties
        name = properties.assigned_client_identifier if properties is not None else None
        reply = f"{_REPLY}{name or os.getpid()}"
        try:
            await client.subscribe(reply)
            await client.publish(
                _REQUEST + operation,
                msgspec.json.encode(arguments),
                qos=1,
                properties=Properties(response_topic=reply),
            )
        except RefusedError as error:
            raise _explained(error) from error
        answer = msgspec.json.decode((await client.next_message(_TIMEOUT_S)).payload, type=_Answer)
    if answer.error:
        raise BadRequestError(answer.error)
    return answer.items


class _Answer(msgspec.Struct):
    items: list[Item] = []
    error: str = ""


def _explained(error: RefusedError) -> StoreError:
    if error.reason_code == ReasonCode.NOT_AUTHORIZED:
        return SetupError(
            "the broker does not let this client administer it; give the name of a superuser with "
            "--user, or run the command on the broker's machine if it has neither a password file "
            "nor access rules"
        )
    return error


def _password(password_file: str | None) -> bytes | None:
    if password_file is None:
        password = os.environ.get("PENSTOCK_MQTT_PASSWORD")
        return None if password is None else password.encode("utf-8", "surrogateescape")
    try:
        with open(password_file, "rb") as file:
            return file.readline(4_096).rstrip(b"\r\n")
    except OSError as error:
        raise BadRequestError(f"{password_file} cannot be read: {error.strerror}") from error


def _tls(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadRequestError(f"{ca_file} has no certificates that can be read: {error}") from error


def write_line(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()
