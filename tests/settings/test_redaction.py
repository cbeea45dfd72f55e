"""Secrets in addresses are not shown."""

from __future__ import annotations

import pytest

from penstock.settings.redaction import redact, redact_setting


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://AKIA123:wJalr/bucket", "s3://AKIA123:wJalr/bucket"),  # a port, for all we know
        ("s3://AKIA123:wJalrXUt@bucket/prefix", "s3://***@bucket/prefix"),
        ("s3://AKIA:wJ/al+r@b/p", "s3://***@b/p"),
        ("s3://minio:9000/b/a@b", "s3://minio:9000/b/a@b"),
        ("gs://ghp_token@host/x", "gs://***@host/x"),
        ("gs://u:p@ss@host/x", "gs://***@host/x"),
        ("abfss://container@account.dfs/x", "abfss://container@account.dfs/x"),
        ("abfss://container:key@account.dfs/x", "abfss://***@account.dfs/x"),
        ("az://c/p?sv=2020&sig=abc%2F&se=1", "az://c/p?sv=2020&sig=***&se=1"),
        (
            "gs://h/p?X-Amz-Credential=AK%2F1&X-Amz-Signature=00ff&X-Amz-Date=1",
            "gs://h/p?X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Date=1",
        ),
        ("s3://b/p?region=eu&secret_access_key=x", "s3://b/p?region=eu&secret_access_key=***"),
        (
            "s3://b/p?AWS_SESSION_TOKEN=x#access_token=y",
            "s3://b/p?AWS_SESSION_TOKEN=***#access_token=***",
        ),
        ("AccountName=a;AccountKey=abc==;Suffix=core", "AccountName=a;AccountKey=***;Suffix=core"),
        ("ab cd", "ab cd"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_settings_are_shown_by_their_names_and_values() -> None:
    assert redact_setting("url", "s3://k:s@b") == "s3://***@b"
    assert redact_setting("peers", ("1@a:1", "s3://k:s@b")) == ["1@a:1", "s3://***@b"]
    assert redact_setting("sasl_password", "x") == "***"
    assert redact_setting("sasl_password", "") == ""
    assert redact_setting("port", 9190) == 9190
