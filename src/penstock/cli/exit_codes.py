"""Exit codes of the `penstock` command.

  0   success
  1   a check found damage
  2   the command failed; one sentence on stderr names the reason
130   interrupted by Ctrl-C or SIGTERM; `serve` and `consume --follow` stop with 0
141   the reader of the output closed the pipe (`| head`), as after SIGPIPE
"""

from __future__ import annotations

from typing import Final

DAMAGED: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141
