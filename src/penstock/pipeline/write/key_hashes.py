"""Kafka's murmur2 hash over an Arrow column, vectorised.

Equal to `penstock.adapter.topics.partitioning.key_hash`: every producer maps a key to the same
partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)


def key_hashes(keys: pa.BinaryArray) -> NDArray[np.uint32]:
    """Return the hash of each key as a non-negative number; a null gets that of an empty key."""
    count = len(keys)
    _, offset_buffer, data_buffer = keys.buffers()
    if count == 0 or offset_buffer is None:
        return np.zeros(count, np.uint32)
    offsets = np.frombuffer(memoryview(offset_buffer), np.int32)[
        keys.offset : keys.offset + count + 1
    ]
    data = np.frombuffer(memoryview(data_buffer or b""), np.uint8)
    starts = offsets[:-1].astype(np.int64)
    sizes = offsets[1:] - starts
    hashed = _SEED ^ sizes.astype(np.uint32)
    words = sizes // 4
    for number in range(int(words.max())):
        active = np.flatnonzero(words > number)
        word = _word(data, starts[active] + 4 * number, 4) * _M
        word = (word ^ (word >> np.uint32(24))) * _M
        hashed[active] = (hashed[active] * _M) ^ word
    rest = sizes - 4 * words
    for size in (1, 2, 3):
        active = np.flatnonzero(rest == size)
        tail = _word(data, starts[active] + 4 * words[active], size)
        hashed[active] = (hashed[active] ^ tail) * _M
    hashed = (hashed ^ (hashed >> np.uint32(13))) * _M
    positive: NDArray[np.uint32] = (hashed ^ (hashed >> np.uint32(15))) & _POSITIVE
    return positive


def _word(data: NDArray[np.uint8], positions: NDArray[np.int64], size: int) -> NDArray[np.uint32]:
    """Return `size` bytes at each place as a little-endian number."""
    word = np.zeros(len(positions), np.uint32)
    for number in range(size):
        word |= data[positions + number].astype(np.uint32) << np.uint32(8 * number)
    return word
