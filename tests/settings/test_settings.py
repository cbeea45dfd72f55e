"""Settings: where they come from, what is refused and how that is said, and their document."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.api.conftest import KINDS

import penstock
from penstock.errors import SettingsError
from penstock.settings import EMBEDDED, SERVE, MqttMapRule, load_settings, merge_settings
from penstock.settings.document import as_markdown
from penstock.settings.mqtt_bridge_section import MqttBridgeConnection, MqttBridgeTopic
from penstock.settings.mqtt_features_section import MqttAutoSubscription, MqttRewriteRule

YEAR_MS = 366 * 24 * 3_600_000
DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_the_broker_has_the_seeds_defaults() -> None:
    assert msgspec.to_builtins(SERVE.broker) == {
        "commit_log_file_size": 1073741824,
        "consume_queue_file_size": 31457280,
        "flush_disk_type": "ASYNC_FLUSH",
        "delete_when": "DiskFull",
        "file_reserved_time": 72,
        "disk_max_used_space_ratio": 85,
        "disk_space_warning_level_ratio": 90,
    }
    assert (SERVE.offsets.enable_cache, SERVE.offsets.flush_interval_ms) == (True, 100)


def test_an_embedded_store_is_small() -> None:
    assert EMBEDDED.broker.commit_log_file_size == 64 << 20
    assert EMBEDDED.engine.index_entries_max < SERVE.engine.index_entries_max
    assert EMBEDDED.broker.file_reserved_time == SERVE.broker.file_reserved_time


def test_later_sources_win(tmp_path: Path) -> None:
    path = write(
        tmp_path / "penstock.toml",
        '[broker]\nflush_disk_type = "SYNC_FLUSH"\nfile_reserved_time = 1\ndelete_when = "04"\n'
        "[offsets]\nenable_cache = false\n",
    )
    settings = load_settings(
        path,
        environment={
            "PENSTOCK_BROKER__FILE_RESERVED_TIME": "2.5",
            "PENSTOCK_BROKER__DELETE_WHEN": "05",
            "PENSTOCK_OFFSETS__FLUSH_INTERVAL_MS": "7",
            "PENSTOCK_PURE": "1",
            "HOME": "/",
        },
        overrides={"broker.delete_when": "06", "engine": {"threads": 3}, "log__level": "debug"},
    )
    broker = settings.broker
    assert (broker.flush_disk_type, broker.file_reserved_time, broker.delete_when) == (
        "SYNC_FLUSH",
        2.5,
        "06",
    )
    assert (settings.offsets.enable_cache, settings.offsets.flush_interval_ms) == (False, 7)
    assert (settings.engine.threads, settings.log.level) == (3, "debug")
    assert settings.topics == SERVE.topics


BAD_FILES = {
    "[brokr]\n": "unknown section [brokr]; did you mean [broker]?",
    "[zoo]\n": "unknown section [zoo]; there are node, ",
    "[broker]\nflush_disk_typ = 1\n": "broker.flush_disk_typ; did you mean 'flush_disk_type'?",
    "[broker]\nenable_cache = true\n": "broker.enable_cache; did you mean 'offsets.enable_cache'?",
    "[broker]\nzzz = true\n": "unknown setting broker.zzz",
    'broker = "fast"\n': "[broker] must be a table of keys, got 'fast'",
    "[broker]\nfile_reserved_time = -1\n": "broker.file_reserved_time is -1: Expected `float` > 0",
    "[broker]\ncommit_log_file_size = 1\n": "broker.commit_log_file_size is 1: Expected `int` >=",
    "[broker]\ndisk_max_used_space_ratio = 101\n": "<= 100",
    '[broker]\ndelete_when = "noon"\n': "broker.delete_when is 'noon'",
    '[broker]\nflush_disk_type = "NEVER"\n': "broker.flush_disk_type is 'NEVER'",
    "[broker]\ndisk_space_warning_level_ratio = 50\n": "below disk_max_used_space_ratio 85",
    "[broker\n": "not TOML",
    "[offsets]\nflush_interval_ms = [1]\n": "offsets.flush_interval_ms is [1]",
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.items())
def test_a_mistake_in_a_file_is_named_with_its_file(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path / "penstock.toml", text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environment={})
    assert message in str(caught.value)
    if "below" not in message:
        assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PENSTOCK_BROKER__FLUSH_DISK_TYP", "x", "did you mean 'flush_disk_type'"),
        ("PENSTOCK_BROKR__FLUSH_DISK_TYPE", "x", "did you mean [broker]"),
        ("PENSTOCK_ENGINE__THREADS", "many", "engine.threads is 'many'"),
        ("PENSTOCK_OFFSETS__ENABLE_CACHE", "perhaps", "offsets.enable_cache is 'perhaps'"),
    ],
)
def test_a_mistake_in_the_environment_is_named_with_its_variable(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environment={name: value})
    assert message in str(caught.value)
    assert f"environment variable {name}" in str(caught.value)


@pytest.mark.parametrize(
    "text", ['["1@a:1","2@b:2"]', ' [ "1@a:1", "2@b:2" ]', "1@a:1,2@b:2", "1@a:1, 2@b:2,"]
)
def test_lists_are_given_as_text_in_json_or_with_commas(text: str) -> None:
    peers = ("1@a:1", "2@b:2")
    found = load_settings(environment={"PENSTOCK_NODE__PEERS": text, "PENSTOCK_NODE__ROLES": ""})
    assert (found.node.peers, found.node.roles) == (peers, ())
    assert load_settings(environment={}, overrides={"node.peers": text}).node.peers == peers
    assert load_settings(environment={}, overrides={"node.peers": [*peers]}).node.peers == peers


@pytest.mark.parametrize("text", ['["1@a:1"', "[1]", '[["a"]]'])
def test_what_is_no_list_of_texts_is_said_with_its_variable(text: str) -> None:
    with pytest.raises(SettingsError, match=r"variable PENSTOCK_NODE__PEERS: node.peers is \S"):
        load_settings(environment={"PENSTOCK_NODE__PEERS": text})


def numbers() -> list[str]:
    return [
        f"{section}.{key}"
        for section, keys in msgspec.to_builtins(SERVE).items()
        for key, value in keys.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


@pytest.mark.parametrize("name", numbers())
def test_no_number_goes_beyond_what_the_store_can_reckon_with(name: str) -> None:
    variable = "PENSTOCK_" + name.replace(".", "__").upper()
    for wrong in (10**30, -(10**30), 1 << 63, float("inf"), float("-inf"), float("nan"), "nan"):
        with pytest.raises(SettingsError, match=name):
            merge_settings(SERVE, {name: wrong})
        with pytest.raises(SettingsError, match=name):
            load_settings(environment={variable: str(wrong)})


def test_a_store_works_with_the_largest_numbers(directory: Path) -> None:
    largest = {
        **dict.fromkeys(("engine.flush_interval_ms", "engine.upkeep_interval_ms"), YEAR_MS),
        **dict.fromkeys(("offsets.flush_interval_ms", "offsets.commit_timeout_ms"), YEAR_MS),
        **dict.fromkeys(("engine.segment_size", "engine.mapped_bytes_max"), 1 << 60),
        **dict.fromkeys(("engine.memory_records_max", "engine.memory_bytes_max"), 1 << 60),
        **dict.fromkeys(("broker.file_reserved_time", "engine.segment_age_h"), 1_000_000),
        **dict.fromkeys(("offsets.idle_group_h", "tiering.segment_age_h"), 1_000_000),
        **dict.fromkeys(("engine.rocksdb_block_cache_size", "offsets.pending_max"), 1 << 60),
        "node.id": (1 << 31) - 1,
    }
    for number in (1, 2):
        with penstock.open(directory, **largest) as store:
            for kind in KINDS:
                topic = store.create_topic(kind, storage=kind, exist_ok=True)
                topic.write(b"v", key=b"k")
            store.consumer("g", KINDS).commit()
            store.run_upkeep()
            assert len(store["segment"].query(b"k")) == len(store["rocksdb"].query(b"k")) == number


def test_a_missing_or_binary_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(str(tmp_path / "nothing.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not TOML"):
        load_settings(str(tmp_path / "binary.toml"))


def test_a_mistake_in_an_argument_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean 'enable_cache'"):
        penstock.open(tmp_path / "data", offsets__enable_cach=False)
    assert not (tmp_path / "data").exists()


def test_merging_takes_nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ENGINE__THREADS", "17")
    assert merge_settings(SERVE, {}) == SERVE
    assert load_settings().engine.threads == 17


def test_topics_are_created_with_the_defaults_of_the_settings(directory: Path) -> None:
    with penstock.open(
        directory,
        topics={"storage": "memory", "partitions": 4, "partitioner": "key"},
        broker__flush_disk_type="SYNC_FLUSH",
    ) as store:
        info = store.create_topic("orders").describe()
        assert (info.storage, info.partition_count) == ("memory", 4)
        assert (info.config.partitioner, info.config.flush) == ("key", "SYNC_FLUSH")


def test_the_document_of_the_settings_is_current() -> None:
    if os.environ.get("PENSTOCK_WRITE_DOCUMENTS"):
        DOCUMENT.write_text(as_markdown(), "utf-8")
    assert DOCUMENT.read_text("utf-8") == as_markdown(), "make docs writes it again"


def test_every_setting_has_a_meaning_in_the_document() -> None:
    rows = [line for line in as_markdown().splitlines() if line.startswith("| `")]
    settings = msgspec.to_builtins(SERVE)
    tables = (
        MqttMapRule,
        MqttRewriteRule,
        MqttAutoSubscription,
        MqttBridgeConnection,
        MqttBridgeTopic,
    )
    in_tables = sum(len(table.__struct_fields__) for table in tables)
    assert len(rows) == sum(len(section) for section in settings.values()) + in_tables
    assert all(row.split("|")[4].strip() for row in rows)


def test_a_table_of_a_list_of_tables_is_checked_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[[mqtt.map]]\nfilter = "a/#"\ntopic = "a"\n')
    (rule,) = load_settings(str(file), environment={}).mqtt.map
    assert rule == MqttMapRule(filter="a/#", topic="a")
    file.write_text('[[mqtt.map]]\nfilter = "a/#"\ntopics = "a"\n')
    with pytest.raises(SettingsError, match=r"mqtt\.map"):
        load_settings(str(file), environment={})
