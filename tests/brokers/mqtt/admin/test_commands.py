"""`penstock mqtt` against a node that serves, and access to its administration."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory
from typer.testing import CliRunner, Result

from penstock.brokers.mqtt.client import BlockingMqttClient, ClientOptions, RefusedError
from penstock.brokers.mqtt.policy.passwords import hash_password
from penstock.cli.commands.mqtt.app import app

WAIT_S = 60.0


def options(port: int, client_id: str, **more: object) -> ClientOptions:
    return ClientOptions(port=port, client_id=client_id, **more)  # type: ignore[arg-type] # plain keywords


class Commands:
    def __init__(self, port: int) -> None:
        self.port = port

    def run(self, *arguments: str, text: str | None = None, user: str | None = None) -> Result:
        target = ["--broker", f"127.0.0.1:{self.port}"]
        if user is not None:
            target += ["--user", user]
        return CliRunner().invoke(app, [*arguments, *target], input=text)

    def items(self, *arguments: str) -> list[dict[str, object]]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.output.splitlines()]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with quick_directory() as directory, serve(Path(directory) / "data") as server:
        yield Commands(port_of(server))


def test_a_message_is_published_and_printed(commands: Commands) -> None:
    assert commands.run("publish", "shown/a", "on", "--retain").exit_code == 0
    result = commands.run("subscribe", "shown/#", "--topic", "--limit", "1", "--timeout", "60")
    assert result.output == "shown/a on\n"


def test_each_line_of_stdin_is_a_message(commands: Commands) -> None:
    with BlockingMqttClient(options(commands.port, "lines")) as client:
        client.subscribe("lines", qos=1)
        assert commands.run("publish", "lines", text="one\ntwo\n").exit_code == 0
        assert [client.next_message(WAIT_S).payload for _ in range(2)] == [b"one", b"two"]


def test_sessions_and_subscriptions_are_listed(commands: Commands) -> None:
    with BlockingMqttClient(options(commands.port, "listed", session_expiry_s=60)) as client:
        client.subscribe("listed/#", qos=1)
        [session] = [one for one in commands.items("sessions") if one["client"] == "listed"]
        assert session["is_connected"]
        assert session["subscriptions"] == 1
        assert [one["filter"] for one in commands.items("subscriptions", "listed")] == ["listed/#"]
        assert "listed" in commands.run("sessions").output
        assert "listed/#" in commands.run("subscriptions").output
    idle = [one["client"] for one in commands.items("sessions", "--idle")]
    assert "listed" in idle


def test_retained_messages_are_listed(commands: Commands) -> None:
    commands.run("publish", "kept/a", "value", "--retain")
    [item] = commands.items("retained", "kept/#")
    assert (item["topic"], item["payload"]) == ("kept/a", "value")
    assert "kept/a" in commands.run("retained", "kept/#").output


def test_a_topic_is_explained(commands: Commands) -> None:
    with BlockingMqttClient(options(commands.port, "explained")) as client:
        client.subscribe("why/+", qos=1)
        client.publish("why/a", b"", qos=1)
        [item] = commands.items("explain", "why/a")
        assert item["stored_topic"] == "mqtt"
        assert item["subscribers"] == [{"client": "explained", "filter": "why/+", "qos": 1}]
        assert "mqtt" in commands.run("explain", "why/a").output


def test_a_client_is_disconnected(commands: Commands) -> None:
    client = BlockingMqttClient(options(commands.port, "kicked"))
    try:
        assert commands.run("kick", "kicked", "--yes").exit_code == 0
        with pytest.raises(RefusedError, match="administrative action"):
            client.next_message(WAIT_S)
    finally:
        client.close()
    missing = commands.run("kick", "unknown", "--yes")
    assert "there is no session" in str(missing.exception)


def test_a_client_on_the_blacklist_is_disconnected_and_refused(commands: Commands) -> None:
    client = BlockingMqttClient(options(commands.port, "listed-1"))
    try:
        added = commands.run(
            "blacklist", "add", "client", "^listed-", "--match", "regex", "--for", "1h"
        )
        assert added.exit_code == 0, added.exception
        with pytest.raises(RefusedError, match="administrative action"):
            client.next_message(WAIT_S)
    finally:
        client.close()
    with pytest.raises(RefusedError, match="banned"):
        BlockingMqttClient(options(commands.port, "listed-2"))
    [item] = commands.items("blacklist", "list")
    assert (item["kind"], item["value"]) == ("client", "^listed-")
    assert commands.run("blacklist", "list").exit_code == 0
    removed = commands.run("blacklist", "remove", "client", "^listed-", "--match", "regex")
    assert removed.exit_code == 0
    BlockingMqttClient(options(commands.port, "listed-2")).close()


def test_slow_subscribers_are_listed(commands: Commands) -> None:
    with BlockingMqttClient(options(commands.port, "slow")) as client:
        client.subscribe("slow", qos=1)
        client.publish("slow", b"", qos=1)
        client.next_message(WAIT_S)
        client.publish("slow", b"", qos=1)
        client.next_message(WAIT_S)
        assert "slow" in {one["client_id"] for one in commands.items("slow")}


def test_an_address_that_is_not_one_is_refused() -> None:
    result = CliRunner().invoke(app, ["sessions", "--broker", "host:port"])
    assert "write HOST:PORT" in str(result.exception)


def test_passwords_are_added_changed_and_removed(tmp_path: Path) -> None:
    file = str(tmp_path / "passwords")
    for expected in ("added alice", "changed alice"):
        result = CliRunner().invoke(app, ["password", file, "alice"], input="secret\n")
        assert result.output.strip() == expected
    assert (tmp_path / "passwords").stat().st_mode & 0o077 == 0
    result = CliRunner().invoke(app, ["password", file, "alice", "--remove"])
    assert result.output.strip() == "removed alice"
    again = CliRunner().invoke(app, ["password", file, "alice", "--remove"])
    assert "has no user" in str(again.exception)


def test_the_blacklist_survives_a_restart() -> None:
    with quick_directory() as directory:
        data = Path(directory) / "data"
        with serve(data) as server:
            Commands(port_of(server)).run("blacklist", "add", "client", "bad")
        with serve(data) as server, pytest.raises(RefusedError, match="banned"):
            BlockingMqttClient(options(port_of(server), "bad"))


def test_access_rules_hold_for_publishers_subscribers_and_administrators(tmp_path: Path) -> None:
    users = {"alice": b"a", "root": b"r"}
    passwords = "".join(f"{name}:{hash_password(given).text()}\n" for name, given in users.items())
    (tmp_path / "passwords").write_text(passwords, "utf-8")
    acl = tmp_path / "acl"
    acl.write_text("superuser root\nuser alice\ntopic own/#\npattern read dev/%c\n", "utf-8")
    settings = node_settings(
        mqtt_access__password_file=str(tmp_path / "passwords"),
        mqtt_access__acl_file=str(acl),
        mqtt_access__file_check_interval_ms=100,
    )
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as server:
        port = port_of(server)
        with pytest.raises(RefusedError, match="not authorized"):
            BlockingMqttClient(options(port, "c"))
        with pytest.raises(RefusedError, match="bad user name or password"):
            BlockingMqttClient(options(port, "c", username="alice", password=b"r"))
        with pytest.raises(RefusedError, match="bad user name or password"):
            BlockingMqttClient(options(port, "c", username="bob", password=b""))
        login = options(port, "c", username="alice", password=b"a")
        with BlockingMqttClient(login) as client:
            assert client.subscribe("own/#", qos=1) == 1
            client.subscribe("dev/c")
            for topic_filter in ("#", "$share/g/#", "dev/d", "$penstock/reply/x"):
                with pytest.raises(RefusedError, match="not authorized"):
                    client.subscribe(topic_filter)
            client.publish("own/a", b"", qos=1)
            for topic in ("other", "$delayed/0/other", "$penstock/request/sessions"):
                with pytest.raises(RefusedError, match="not authorized"):
                    client.publish(topic, b"", qos=1)
            acl.write_text("user alice\ntopic other\n", "utf-8")
            _until_allowed(client, "other")
            with pytest.raises(RefusedError, match="not authorized"):
                client.publish("own/a", b"", qos=1)
        acl.write_text("superuser root\n", "utf-8")
        refused = Commands(port).run("sessions", user="alice", text=None)
        assert refused.exit_code != 0


def _until_allowed(client: BlockingMqttClient, topic: str) -> None:
    """Publish until the changed rules were read."""
    for _ in range(600):
        try:
            client.publish(topic, b"", qos=1)
        except RefusedError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the changed rules were not read")


def test_the_access_files_are_read_again_on_request(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic a\n", "utf-8")
    settings = node_settings(
        mqtt_access__acl_file=str(acl), mqtt_access__file_check_interval_ms=3_600_000
    )
    with (
        quick_directory() as directory,
        serve(Path(directory) / "data", settings) as server,
        BlockingMqttClient(options(port_of(server), "c")) as client,
    ):
        assert server.mqtt is not None
        acl.write_text("topic b\n", "utf-8")
        with pytest.raises(RefusedError, match="not authorized"):
            client.publish("b", b"", qos=1)
        server.mqtt.reload_access_files()
        _until_allowed(client, "b")
        acl.write_text("topc c\n", "utf-8")
        server.mqtt.reload_access_files()
        client.publish("b", b"", qos=1)  # a file with an error changes nothing
