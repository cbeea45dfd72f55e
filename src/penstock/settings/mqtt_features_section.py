"""The section `mqtt_features`: topic rewriting, automatic subscriptions, generated topics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import Large, Milliseconds


class MqttRewriteRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt_features.rewrite]]` table: a topic that clients use, and its name here."""

    action: Annotated[
        Literal["publish", "subscribe", "all"], Meta(description="What the rule changes.")
    ] = "all"
    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Topics and filters to which the rule applies.",
        ),
    ]
    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=256,
            description="Regular expression that the whole topic must match.",
        ),
    ]
    topic: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="New name; `$1` is the text of the first group, `${clientid}` and "
            "`${username}` name the client.",
        ),
    ]


class MqttAutoSubscription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt_features.auto_subscribe]]` table: a subscription that every client gets."""

    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="`${clientid}`, `${username}` and `${host}` name the client.",
        ),
    ]
    qos: Annotated[int, Meta(ge=0, le=2, description="Maximum QoS of the subscription.")] = 0
    no_local: Annotated[bool, Meta(description="Leaves out what the client itself publishes.")] = (
        False
    )
    retain_as_published: Annotated[
        bool, Meta(description="Keeps the retain flag of the publisher.")
    ] = False
    retain_handling: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description="Retained messages: 0 always, 1 for a new subscription, 2 never.",
        ),
    ] = 0


class MqttFeatureSettings(Struct, frozen=True, kw_only=True):
    """Features of the MQTT front end beyond the standard."""

    rewrite: Annotated[
        tuple[MqttRewriteRule, ...],
        Meta(
            description="Rules `[[mqtt_features.rewrite]]` that rename topics of publishes, "
            "subscriptions or both. The first rule that matches applies."
        ),
    ] = ()
    auto_subscribe: Annotated[
        tuple[MqttAutoSubscription, ...],
        Meta(
            description="Tables `[[mqtt_features.auto_subscribe]]`: subscriptions that clients "
            "get when they connect."
        ),
    ] = ()
    sys_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=0, description="Interval at which `$SYS/` topics are published; 0: never."),
    ] = 60_000
    delayed_max: Annotated[
        Large,
        Meta(ge=0, description="Maximum messages that wait for their time; 0: `$delayed` is off."),
    ] = 1_000_000
    exclusive: Annotated[
        bool, Meta(description="Allows exclusive subscriptions, `$exclusive/TOPIC`.")
    ] = True
    slow_subscriptions_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Slowest subscribers that the statistics keep; 0: no statistics.",
        ),
    ] = 10
    sparkplug: Annotated[
        bool,
        Meta(
            description="Keeps birth certificates of Sparkplug nodes and devices as retained "
            "messages below `$sparkplug/certificates/`."
        ),
    ] = False
