"""The section `mqtt_access`: who may connect, publish and subscribe."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import Milliseconds

Rate = Annotated[float, Meta(ge=0, le=1e9)]


class MqttAccessSettings(Struct, frozen=True, kw_only=True):
    """Authentication, authorization and rates of MQTT clients."""

    password_file: Annotated[
        str,
        Meta(
            description="File with user names and password hashes, written by `penstock mqtt "
            "password` or by Mosquitto; empty: every user name and password is accepted. A "
            "changed file is read again."
        ),
    ] = ""
    acl_file: Annotated[
        str,
        Meta(
            description="File with access rules, in the syntax of Mosquitto; empty: clients may "
            "publish and subscribe to everything. A changed file is read again."
        ),
    ] = ""
    anonymous: Annotated[
        Literal["auto", "allow", "deny"],
        Meta(
            description="Clients without a user name: `auto` allows them unless there is a "
            "password file."
        ),
    ] = "auto"
    subscription_refusal: Annotated[
        Literal["not_authorized", "unspecified_error"],
        Meta(
            description="Reason code of subscriptions that the rules deny: 0x87, or 0x80 for MQTT "
            "5 clients that know no other."
        ),
    ] = "not_authorized"
    file_check_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=100, description="Interval of the check whether these files have changed."),
    ] = 2_000
    connection_rate: Annotated[
        Rate, Meta(description="Maximum new connections per second; 0: no limit.")
    ] = 0.0
    connection_rate_per_address: Annotated[
        Rate,
        Meta(description="Maximum new connections per second and client address; 0: no limit."),
    ] = 0.0
    publish_rate: Annotated[
        Rate,
        Meta(
            description="Maximum publishes per second and connection, above which the server "
            "reads slower; 0: no limit."
        ),
    ] = 0.0
    publish_bytes_rate: Annotated[
        Rate,
        Meta(
            description="Maximum payload bytes per second and connection, above which the server "
            "reads slower; 0: no limit."
        ),
    ] = 0.0
    flapping_disconnects: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Disconnects within `flapping_window_ms` after which a client id is "
            "banned; 0: never.",
        ),
    ] = 0
    flapping_window_ms: Annotated[
        Milliseconds, Meta(ge=1, description="Time in which disconnects are counted.")
    ] = 60_000
    flapping_ban_ms: Annotated[
        Milliseconds, Meta(ge=1, description="Time for which a flapping client id is banned.")
    ] = 300_000
