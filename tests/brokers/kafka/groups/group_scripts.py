"""Plays the text scripts in `testdata`: a request a line, what comes of it indented below.

PENSTOCK_REWRITE=1 pytest tests/brokers/kafka/groups/test_group_scripts.py

at 1000                              time passes; whatever falls due on the way happens
join NAME key=value…                 id, instance, client, session, rebalance, type, protocols
                                     (`range:a|sticky:b`), flags `ask` (MEMBER_ID_REQUIRED) and
                                     `skip` (can skip the assignment)
sync NAME id generation member=bytes…
beat | commit | leave  id [generation] [instance=…]
show                                 the group
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.groups.codes import GroupCode
from penstock.groups.model import (
    Answer,
    Caller,
    Join,
    Joined,
    Limits,
    Sync,
)
from penstock.groups.state_machine import GroupMachine


class GroupScript:
    def __init__(self, limits: Limits) -> None:
        self._counts: dict[str, int] = {}
        self._names: list[str] = []
        self._now_ms = 0
        self.machine = GroupMachine(limits, self._make_id)

    def _make_id(self, prefix: str) -> str:
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        return f"{prefix}-{self._counts[prefix]}"

    def run(self, line: str) -> Iterator[str]:
        word, *rest = line.split()
        words = [one for one in rest if "=" not in one]
        fields = dict(one.split("=", 1) for one in rest if "=" in one)
        match word:
            case "at":
                yield from self._pass_time(int(words[0]))
            case "join":
                self.machine.join(self._ticket(words[0]), _join(fields, words), self._now_ms)
            case "sync":
                caller = Caller(words[1], int(words[2]), fields.pop("instance", None))
                names = fields.pop("type", None), fields.pop("protocol", None)
                assignments = tuple((one, data.encode()) for one, data in fields.items())
                request = Sync(caller, assignments, *names)
                self.machine.sync(self._ticket(words[0]), request, self._now_ms)
            case "show":
                yield from self._show()
            case _:
                yield self._ask(word, words, fields).name
        yield from self._collect()

    def _ask(self, word: str, words: list[str], fields: dict[str, str]) -> GroupCode:
        member_id = "" if not words or words[0] == "nobody" else words[0]
        instance = fields.get("instance")
        if word == "leave":
            return self.machine.leave(member_id, instance, self._now_ms)
        if word == "delete":
            return self.machine.delete()
        generation = int(words[1]) if len(words) > 1 else -1
        caller = Caller(member_id, generation, instance)
        if word == "beat":
            return self.machine.heartbeat(caller, self._now_ms)
        assert word in {"commit", "txn-commit"}, word
        in_transaction = word == "txn-commit"
        return self.machine.check_commit(caller, self._now_ms, in_transaction=in_transaction)

    def _pass_time(self, until_ms: int) -> Iterator[str]:
        while (due := self.machine.deadline_ms()) is not None and due <= until_ms:
            self._now_ms = max(self._now_ms, due)
            self.machine.tick(self._now_ms)
            yield from (f"{self._now_ms}: {line}" for line in self._collect())
        self._now_ms = until_ms

    def _ticket(self, name: str) -> int:
        self._names.append(name)
        return len(self._names) - 1

    def _collect(self) -> Iterator[str]:
        for ticket, answer in self.machine.drain_answers():
            yield f"{self._names[ticket]} ◀ {_describe(answer)}"

    def _show(self) -> Iterator[str]:
        group = self.machine
        members = group.members
        yield (
            f"{group.state.value} generation={group.generation} protocol={members.protocol} "
            f"leader={members.leader} deadline={group.deadline_ms()}"
        )
        for member in members:
            waits = "joining" if member.join_ticket is not None else ""
            waits += "syncing" if member.sync_ticket is not None else ""
            yield f"{member.member_id} {member.instance_id or ''} {waits} {member.assignment!r}"
        for pending in members.pending:
            yield f"{pending} pending"


def _join(fields: dict[str, str], words: list[str]) -> Join:
    protocols = fields.get("protocols", "range:m")
    pairs = [one.partition(":") for one in protocols.split("|") if one]
    return Join(
        member_id=fields.get("id", ""),
        instance_id=fields.get("instance"),
        client_id=fields.get("client", words[0]),
        client_host="host",
        session_timeout_ms=int(fields.get("session", "10000")),
        rebalance_timeout_ms=int(fields.get("rebalance", "30000")),
        protocol_type=fields.get("type", "consumer"),
        protocols=tuple((name, data.encode()) for name, _, data in pairs),
        requires_known_id="ask" in words,
        can_skip_assignment="skip" in words,
    )


def _describe(answer: Answer) -> str:
    if answer.error is not GroupCode.none:
        id_given = answer.member_id if isinstance(answer, Joined) else ""
        return f"{answer.error.name} {id_given}".strip()
    if not isinstance(answer, Joined):
        return f"assigned {answer.assignment.decode()!r} ({answer.protocol})"
    members = " ".join(f"{one.member_id}={one.metadata.decode()}" for one in answer.members)
    skip = " skip" if answer.skip_assignment else ""
    return (
        f"{answer.member_id} generation={answer.generation} {answer.protocol_type}/"
        f"{answer.protocol} leader={answer.leader}{skip} [{members}]"
    )


def play(path: Path, limits: Limits) -> str:
    script = GroupScript(limits)
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {shown}".rstrip() for shown in script.run(line)]
    return "\n".join(lines) + "\n"
