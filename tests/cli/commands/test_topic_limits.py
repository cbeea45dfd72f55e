"""`penstock topic` with limits: a number, none for the node's default, -1 for no limit."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run


def test_no_limit_and_the_default_are_two_values(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    options = ("--set", "retention_ms=-1", "--set", "tiering.tier_retention_ms=-1")
    assert run("topic", "create", "orders", *options, *data).code == 0
    shown = run("topic", "describe", "orders", "--json", *data).out
    assert '"retention_ms":-1' in shown
    assert '"tier_retention_ms":-1' in shown
    assert run("topic", "alter", "orders", "--set", "retention_ms=none", *data).code == 0
    assert '"retention_ms":null' in run("topic", "describe", "orders", "--json", *data).out
    refused = run("topic", "alter", "orders", "--set", "retention_ms=-2", *data)
    assert refused.code != 0
    assert "retention_ms" in refused.err


def test_the_address_of_a_tier_is_shown_without_its_secrets(run: Run, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    address = "tiering.provider=s3://AKIA:SECRETKEY@bucket/prefix"
    assert (
        run("topic", "create", "orders", "--set", "tiering=on", "--set", address, *data).code == 0
    )
    for shown in (
        run("topic", "describe", "orders", *data).out,
        run("topic", "describe", "orders", "--json", *data).out,
    ):
        assert "s3://***@bucket/prefix" in shown
        assert "SECRETKEY" not in shown
