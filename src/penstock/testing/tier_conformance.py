"""What every provider of a tier must do; run it against one of your own.

class TestMyProvider(TierConformance):
    @pytest.fixture
    def provider(self) -> TierProvider:
        return open_provider("mine://somewhere-empty")
"""

from __future__ import annotations

import threading

import pytest

from penstock.codec import pure
from penstock.errors import AlreadyExistsError, StaleWriteError
from penstock.tiered.providers import (
    Blocks,
    ObjectMissingError,
    TierProvider,
    get_range_into,
    get_range_summed,
)


class TierConformance:
    def test_an_object_is_read_back_whole_and_in_parts(self, provider: TierProvider) -> None:
        data = bytes(range(256)) * 40
        provider.put_if_absent("a/b/one", data)
        assert provider.get("a/b/one").data == data
        assert provider.get_range("a/b/one", 100, 1000) == data[100:1100]
        assert provider.get_range("a/b/one", len(data) - 1, 1) == data[-1:]

    def test_a_buffer_is_filled_and_its_blocks_are_summed(self, provider: TierProvider) -> None:
        data = bytes(range(251)) * 1200
        provider.put_if_absent("a/one", data)
        buffer = memoryview(bytearray(len(data) - 7))
        get_range_into(provider, "a/one", 7, len(buffer), lambda: buffer)
        assert buffer == data[7:]
        for size in (0, 1000, len(data) - 100, len(data)):
            summed = memoryview(bytearray(len(data)))
            blocks = Blocks(size, 65536)
            sums = get_range_summed(provider, "a/one", 0, len(data), lambda: summed, blocks)  # noqa: B023 - called before the next round
            assert summed == data
            assert sums == pure.block_checksums(data[:size], 65536)

    def test_a_buffer_that_cannot_be_filled_is_told(self, provider: TierProvider) -> None:
        provider.put_if_absent("one", b"12345")
        buffer = memoryview(bytearray(6))
        for key in ("one", "none"):
            with pytest.raises(ObjectMissingError):
                get_range_into(provider, key, 0, 6, lambda: buffer)
            with pytest.raises(ObjectMissingError):
                get_range_summed(provider, key, 0, 6, lambda: buffer, Blocks(6, 4))

    def test_an_existing_object_is_never_replaced(self, provider: TierProvider) -> None:
        provider.put_if_absent("one", b"first")
        with pytest.raises(AlreadyExistsError):
            provider.put_if_absent("one", b"second")
        assert provider.get("one").data == b"first"

    def test_what_is_missing_is_told(self, provider: TierProvider) -> None:
        with pytest.raises(ObjectMissingError):
            provider.get("none")
        with pytest.raises(ObjectMissingError):
            provider.get_range("none", 0, 1)
        assert provider.head("none") is None

    def test_head_tells_size_and_time(self, provider: TierProvider) -> None:
        provider.put_if_absent("one", b"12345")
        info = provider.head("one")
        assert info is not None
        assert (info.key, info.size) == ("one", 5)
        assert info.modified_ms > 1_500_000_000_000

    def test_a_list_has_exactly_the_keys_of_its_prefix(self, provider: TierProvider) -> None:
        keys = ["a/x", "a/y", "ab/x", "b", "a/deep/er"]
        for key in keys:
            provider.put_if_absent(key, b"1")
        assert [info.key for info in provider.list()] == sorted(keys)
        assert [info.key for info in provider.list("a/")] == ["a/deep/er", "a/x", "a/y"]
        assert [info.key for info in provider.list("a/x")] == ["a/x"]
        assert list(provider.list("none/")) == []

    def test_deleting_twice_is_deleting_once(self, provider: TierProvider) -> None:
        provider.put_if_absent("a/one", b"1")
        provider.delete("a/one")
        provider.delete("a/one")
        assert provider.head("a/one") is None
        provider.put_if_absent("a/one", b"2")
        assert provider.get("a/one").data == b"2"

    def test_compare_and_set_replaces_only_what_was_seen(self, provider: TierProvider) -> None:
        first = provider.compare_and_set("m", b"1", None)
        assert provider.get("m") == (b"1", first)
        with pytest.raises(StaleWriteError):
            provider.compare_and_set("m", b"other", None)
        second = provider.compare_and_set("m", b"2", first)
        with pytest.raises(StaleWriteError):
            provider.compare_and_set("m", b"3", first)
        assert provider.get("m") == (b"2", second)

    def test_compare_and_set_of_a_deleted_object_is_stale(self, provider: TierProvider) -> None:
        version = provider.compare_and_set("m", b"1", None)
        provider.delete("m")
        with pytest.raises(StaleWriteError):
            provider.compare_and_set("m", b"2", version)
        assert provider.head("m") is None

    def test_of_many_writers_exactly_one_wins_each_round(self, provider: TierProvider) -> None:
        version = provider.compare_and_set("m", b"0", None)
        for round_number in range(3):
            wins: list[str] = []

            def race(
                name: int, wins: list[str] = wins, attempt: int = round_number, seen: str = version
            ) -> None:
                try:
                    wins.append(provider.compare_and_set("m", f"{attempt}-{name}".encode(), seen))
                except StaleWriteError:
                    return

            threads = [threading.Thread(target=race, args=(name,)) for name in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(wins) == 1
            version = wins[0]
            assert provider.get("m").version == version
