"""From which version on each API has tagged fields, in its messages and in its headers.

kio knows it, too, but has to load every version of a message to tell, which takes a second at
start. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# fmt: off
FIRST_FLEXIBLE: Final[Mapping[int, int]] = {
    0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 17: 99,
    18: 3, 19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 29: 2, 30: 2,
    31: 2, 32: 4, 33: 2, 34: 2, 35: 2, 36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2,
    44: 1, 45: 0, 46: 0, 47: 99, 48: 1, 49: 1, 50: 0, 51: 0, 55: 0, 57: 0, 60: 0, 61: 0, 65: 0,
    66: 0, 68: 0, 69: 0, 71: 0, 72: 0, 74: 0, 75: 0, 76: 1, 77: 1, 78: 1, 79: 1,
}
# fmt: on
