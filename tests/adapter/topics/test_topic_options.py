"""A topic's options: every mistake is found before anything is asked for, and told by its name."""

from __future__ import annotations

import pytest
from tests.adapter.bench import Bench

from penstock.adapter.topics.options import alter_config, build_config
from penstock.errors import BadRequestError
from penstock.meta.state.model import TieringPolicy, TopicConfig


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"storage": "tape"}, "storage is 'tape'; expected one of memory, rocksdb, segment"),
        ({"queue": "b"}, "queue is 'b'; expected one of batch, simple"),
        ({"flush": "fsync"}, "flush is 'fsync'; expected one of async, sync"),
        ({"cleanup": "DELETE"}, "cleanup is 'DELETE'; expected one of compact, compact,delete"),
        ({"partitioner": ""}, "partitioner is ''; expected one of key, round_robin"),
        ({"tiering.uploader": "me"}, "tiering.uploader is 'me'; expected one of broker, spark"),
        ({"tiering": TieringPolicy(storage_level="x")}, "tiering.storage_level is 'x'; expected"),
        ({"tiering": TieringPolicy(upload_bytes=-1)}, "tiering.upload_bytes: Expected"),
        ({"tiering": TieringPolicy(provider=5)}, "tiering.provider: Expected"),  # type: ignore[arg-type]  # that is the mistake
        ({"tiering": {"provider": "file:///t"}}, "tiering is a TieringPolicy, on, off or none"),
        ({"min_insync": 2}, "min_insync 2 is more than replication 1"),
        ({"retention_ms": "\udcff"}, "retention_ms is not Unicode"),
        ({"tag_header": "\udcff"}, "tag_header is not Unicode"),
        ({"tiering.upload_bytes": "\udcff"}, "tiering.upload_bytes is not Unicode"),
        ({"tiering": ["", "\udcff"]}, "tiering"),
    ],
)
def test_a_wrong_value_is_told_by_its_name(options: dict[str, object], told: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        build_config(options)
    assert str(caught.value).startswith(told)


def test_a_dry_run_finds_what_the_creation_would() -> None:
    with Bench() as bench:
        with pytest.raises(BadRequestError, match="partitioner"):
            bench.admin.check_creation("orders", 1, {"partitioner": "random"})
        bench.create("orders")
        with pytest.raises(BadRequestError, match=r"tiering\.provider"):
            bench.admin.check_alteration("orders", {"tiering.provider": "s3:/typo"})


def test_a_word_that_an_option_has_already_is_in_the_way_of_no_other() -> None:
    newer = TopicConfig(partitioner="of a newer version")
    assert alter_config(newer, {"retention_ms": 5}).retention_ms == 5


def test_full_names_and_short_ones_are_the_same() -> None:
    short = build_config({"storage": "memory", "queue": "batch", "flush": "sync"})
    full = build_config({"storage": "EngineMemory", "queue": "BatchCQ", "flush": "SYNC_FLUSH"})
    assert short == full
