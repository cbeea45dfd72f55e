"""A topic's tier by names and words: each changes what it names, and mistakes are told by name."""

from __future__ import annotations

import pytest

from penstock.adapter.topics.options import alter_config, build_config
from penstock.adapter.topics.tiering_options import shown_policy
from penstock.errors import BadRequestError
from penstock.meta.state.model import TieringPolicy, TopicConfig


def test_a_tier_is_switched_on_off_and_left_to_the_node() -> None:
    on = build_config({"tiering": "on"})
    assert on.tiering == TieringPolicy()
    off = alter_config(on, {"tiering": "off"})
    assert off.tiering == TieringPolicy(storage_level="DISABLE")
    assert alter_config(off, {"tiering": True}).tiering == TieringPolicy()
    assert alter_config(off, {"tiering": None}).tiering is None
    assert alter_config(off, {"retention_ms": 5}).tiering == off.tiering


def test_one_field_is_changed_and_the_others_stay() -> None:
    made = build_config({"tiering.upload_interval_ms": 1000, "tiering.upload_bytes": 5000})
    assert made.tiering == TieringPolicy(upload_interval_ms=1000, upload_bytes=5000)
    changed = alter_config(
        made, {"tiering.local_retention_ms": 60_000, "tiering.upload_bytes": None}
    )
    assert changed.tiering == TieringPolicy(upload_interval_ms=1000, local_retention_ms=60_000)


def test_a_tier_that_is_switched_off_keeps_what_was_said_of_it() -> None:
    made = build_config({"tiering": "off", "tiering.upload_bytes": 5000})
    assert made.tiering == TieringPolicy(storage_level="DISABLE", upload_bytes=5000)
    assert alter_config(made, {"tiering": "on"}).tiering == TieringPolicy(upload_bytes=5000)


def test_a_whole_policy_still_replaces_the_one_before() -> None:
    made = build_config({"tiering.upload_bytes": 5000})
    policy = TieringPolicy(local_retention_bytes=7)
    assert alter_config(made, {"tiering": policy}).tiering == policy
    changed = alter_config(made, {"tiering": policy, "tiering.uploader": "spark"})
    assert changed.tiering == TieringPolicy(local_retention_bytes=7, uploader="spark")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tiering": "maybe"}, "on, off or none"),
        ({"tiering": [1], "tiering.upload_bytes": 1}, "whole or by the names"),
        ({"tiering.upload_bytes": 0}, "tiering.upload_bytes: "),
        ({"tiering.upload_interval_ms": "soon"}, "tiering.upload_interval_ms: "),
        ({"tiering.upload_byte": 5}, "did you mean 'tiering.upload_bytes'"),
        ({"tierin": "on"}, "did you mean 'tiering'"),
    ],
)
def test_a_mistake_is_told_by_its_name(options: dict[str, object], told: str) -> None:
    with pytest.raises(BadRequestError, match=told):
        alter_config(TopicConfig(), options)


@pytest.mark.parametrize(
    "options",
    [
        {"tiering.provider": "s3:/typo"},
        {"tiering.provider": "tier", "tiering": "off"},
        {"tiering.provider": "file:///tier?region=x"},
        {"tiering": TieringPolicy(provider="file:relative")},
        {"tiering": ["x"]},
    ],
)
def test_an_address_that_makes_no_sense_is_told_when_it_is_given(
    options: dict[str, object],
) -> None:
    told = r"tiering\.provider: .*(://|file:///)"
    with pytest.raises(BadRequestError, match=told):
        build_config(options)
    with pytest.raises(BadRequestError, match=told):
        alter_config(build_config({"tiering.provider": "file:///t"}), options)


def test_an_address_that_an_earlier_version_let_through_is_in_the_way_of_nothing_else() -> None:
    before = TopicConfig(tiering=TieringPolicy(provider="s3:/typo"))
    assert alter_config(before, {"retention_ms": 5}).retention_ms == 5
    off = alter_config(before, {"tiering": "off"})
    assert alter_config(off, {"tiering": None}).tiering is None
    mended = alter_config(before, {"tiering.provider": ""}).tiering
    assert mended == TieringPolicy()
    with pytest.raises(BadRequestError, match=r"tiering\.provider"):
        alter_config(off, {"tiering": "on"})


def test_a_policy_is_shown_as_the_options_that_make_it() -> None:
    options = {"tiering": "on", "tiering.upload_bytes": 5000, "tiering.provider": "file:///t"}
    policy = build_config(options).tiering
    assert policy is not None
    shown = dict(shown_policy(policy))
    assert options.items() <= {**shown, "tiering.upload_bytes": 5000}.items()
    again = build_config({name: value for name, value in shown.items() if value != "5000"})
    assert alter_config(again, {"tiering.upload_bytes": 5000}).tiering == policy
    off = alter_config(again, {"tiering": "off"}).tiering
    assert off is not None
    assert dict(shown_policy(off))["tiering"] == "off"
