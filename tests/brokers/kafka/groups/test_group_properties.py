"""Whatever members do and in whatever order: every request is answered once, and nobody is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.codes import GroupCode
from penstock.groups.model import (
    Caller,
    GroupState,
    Join,
    Joined,
    Limits,
    Sync,
    Synced,
)
from penstock.groups.state_machine import GroupMachine

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "rejoin", "sync", "beat", "leave", "wait", "crash"]),
        st.integers(0, 4),
    ),
    max_size=60,
)


class Play:
    """Five clients, two of them static, that do anything at any time."""

    def __init__(self) -> None:
        self.made = 0
        self.now_ms = 0
        self.tickets = 0
        self.waiting: dict[int, int] = {}
        self.ids: dict[int, str] = {}
        self.generations: dict[int, int] = {}
        self.seen: dict[int, set[str]] = {}
        self.machine = GroupMachine(Limits(session_timeout_min_ms=1), self._make_id)

    def _make_id(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}-{self.made}"

    def step(self, action: str, client: int) -> None:
        member_id = self.ids.get(client, "")
        caller = Caller(member_id, self.generations.get(client, -1), self._instance(client))
        match action:
            case "join":
                self._join(client, "")
            case "rejoin":
                self._join(client, member_id)
            case "sync":
                members = tuple((one, one.encode()) for one in self.ids.values())
                self.machine.sync(self._ticket(client), Sync(caller, members), self.now_ms)
            case "beat":
                self.machine.heartbeat(caller, self.now_ms)
            case "leave":
                self.machine.leave(member_id, self._instance(client), self.now_ms)
            case "crash":
                self.ids.pop(client, None)
            case _:
                self.pass_time(700)
        self.collect()
        self.check()

    def _instance(self, client: int) -> str | None:
        return f"static{client}" if client >= 3 else None

    def _join(self, client: int, member_id: str) -> None:
        request = Join(
            member_id=member_id,
            instance_id=self._instance(client),
            client_id=f"c{client}",
            client_host="",
            session_timeout_ms=2_000,
            rebalance_timeout_ms=3_000,
            protocol_type="consumer",
            protocols=(("range", b"%d" % client),),
            requires_known_id=client % 2 == 0,
        )
        self.machine.join(self._ticket(client), request, self.now_ms)

    def _ticket(self, client: int) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = client
        return self.tickets

    def pass_time(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        for _ in range(1_000):
            due = self.machine.deadline_ms()
            if due is None or due > until_ms:
                break
            self.now_ms = max(self.now_ms, due)
            self.machine.tick(self.now_ms)
            self.collect()
            self.check()
        else:
            raise AssertionError("the machine asks for ticks for ever")
        self.now_ms = until_ms

    def collect(self) -> None:
        for ticket, response in self.machine.drain_answers():
            client = self.waiting.pop(ticket)  # KeyError: answered twice
            if isinstance(response, Joined) and response.error in {
                GroupCode.none,
                GroupCode.member_id_required,
            }:
                self.ids[client] = response.member_id
                if response.error is GroupCode.none:
                    self.generations[client] = response.generation
                    members = {one.member_id for one in response.members}
                    if members:
                        assert self.seen.setdefault(response.generation, members) is not None
            elif isinstance(response, Synced) and response.error is GroupCode.none:
                assert response.assignment in {b"", *(one.encode() for one in self._all_ids())}

    def _all_ids(self) -> set[str]:
        return {f"{name}-{n}" for n in range(self.made + 1) for name in self._prefixes()}

    def _prefixes(self) -> list[str]:
        return [*(f"c{n}" for n in range(5)), *(f"static{n}" for n in range(5))]

    def check(self) -> None:
        machine, members = self.machine, self.machine.members
        tickets = set()
        for member in members:
            if member.join_ticket is not None:
                assert machine.state is GroupState.PREPARING
                tickets.add(member.join_ticket)
            if member.sync_ticket is not None:
                assert machine.state is GroupState.COMPLETING
                tickets.add(member.sync_ticket)
        assert tickets == set(self.waiting), "every request that waits is some member's"
        assert (members.leader is None) == (not len(members))
        assert members.leader is None or members.leader in members.by_id
        assert not set(members.pending) & set(members.by_id)
        assert {one.instance_id for one in members if one.instance_id} == set(members.static_ids)
        if machine.state is GroupState.EMPTY:
            assert not len(members)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_request_is_answered_once_and_silence_empties_the_group(
    steps: list[tuple[str, int]],
) -> None:
    play = Play()
    for action, client in steps:
        play.step(action, client)
    play.pass_time(1_000_000)
    assert play.waiting == {}
    assert play.machine.state is GroupState.EMPTY
    assert play.machine.deadline_ms() is None
