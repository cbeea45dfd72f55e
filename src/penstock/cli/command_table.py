"""Table of the subcommands. Each entry imports its modules when the subcommand is built: a server
starts in half the time without the modules of the other commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from penstock.cli.startup import gc_disabled


def _add_serve(app: typer.Typer) -> None:
    with gc_disabled():
        from penstock.cli.commands import serve

    app.command()(serve.serve)


def _add_config(app: typer.Typer) -> None:
    from penstock.cli.commands import serve

    app.command("config")(serve.show_config)


def _add_topic(app: typer.Typer) -> None:
    from penstock.cli.commands import topic

    app.add_typer(topic.app, name="topic")


def _add_produce(app: typer.Typer) -> None:
    from penstock.cli.commands import produce

    app.command()(produce.produce)


def _add_consume(app: typer.Typer) -> None:
    from penstock.cli.commands import consume

    app.command()(consume.consume)


def _add_groups(app: typer.Typer) -> None:
    from penstock.cli.commands import groups

    app.add_typer(groups.app, name="groups")


def _add_retention(app: typer.Typer) -> None:
    from penstock.cli.commands import retention

    app.add_typer(retention.app, name="retention")


def _add_store(app: typer.Typer) -> None:
    from penstock.cli.commands.store.app import app as store_app

    app.add_typer(store_app, name="store")


def _add_cluster(app: typer.Typer) -> None:
    from penstock.cli.commands.cluster.app import app as cluster_app

    app.add_typer(cluster_app, name="cluster")


def _add_pipeline(app: typer.Typer) -> None:
    from penstock.cli.commands import pipeline

    app.add_typer(pipeline.app, name="pipeline")


def _add_tier(app: typer.Typer) -> None:
    from penstock.cli.commands.tier.app import app as tier_app

    app.add_typer(tier_app, name="tier")


def _add_clock(app: typer.Typer) -> None:
    from penstock.cli.commands import clock

    app.add_typer(clock.app, name="clock")


def _add_mqtt(app: typer.Typer) -> None:
    from penstock.cli.commands.mqtt.app import app as mqtt_app

    app.add_typer(mqtt_app, name="mqtt")


COMMANDS: Final[dict[str, Callable[[typer.Typer], None]]] = {
    "serve": _add_serve,
    "config": _add_config,
    "topic": _add_topic,
    "produce": _add_produce,
    "consume": _add_consume,
    "groups": _add_groups,
    "retention": _add_retention,
    "store": _add_store,
    "cluster": _add_cluster,
    "pipeline": _add_pipeline,
    "tier": _add_tier,
    "clock": _add_clock,
    "mqtt": _add_mqtt,
}
