"""The hooks of the access policy: gate, authenticator, authorizer, rates.

gate            blacklist by address, client id and user; rate of new connections
authenticator   password file; the hash runs in the pool
authorizer      the rules that apply to a client, prepared once per connection and revision
rates           publishes of a connection
observer        disconnects, for flapping detection
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.brokers.mqtt.policy.access_files import AccessFiles
from penstock.brokers.mqtt.policy.access_rules import ClientRules, Principal
from penstock.brokers.mqtt.policy.blacklist import Blacklist, BlacklistEntry
from penstock.brokers.mqtt.policy.flapping import FlappingDetector, FlappingLimits
from penstock.brokers.mqtt.policy.passwords import hash_password
from penstock.brokers.mqtt.policy.rates import ConnectionRates, PublishRate, RateLimits
from penstock.brokers.mqtt.protocol.hooks import Action, Client, Exchange, Verdict
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import BadRequestError
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import MqttAccessSettings

if TYPE_CHECKING:
    from penstock.brokers.mqtt.wire.packets import Connect

T = TypeVar("T")
INTERNAL_TRANSPORT: Final = "internal"
"""Transport of connections inside the process, such as bridges; sockets never have it."""
HASHES_MAX: Final = 64
"""Passwords that are checked or wait to be; a client beyond is refused with 0x89 (server busy)."""

_log: Final = get_logger(__name__)


class RunBlocking(Protocol):
    """Runs a call in the node's pool of threads."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class AccessGate:
    """Refuses clients before they are authenticated."""

    def __init__(self, blacklist: Blacklist, rates: ConnectionRates, clock: Clock) -> None:
        self._blacklist: Final = blacklist
        self._rates: Final = rates
        self._clock: Final = clock
        self.banned = 0
        self.rate_exceeded = 0

    def check(self, client: Client) -> int:
        if client.transport == INTERNAL_TRANSPORT:
            return ReasonCode.SUCCESS
        entry = self._blacklist.find(
            user=client.username, client=client.client_id, address=client.host
        )
        if entry is not None:
            self.banned += 1
            return ReasonCode.BANNED
        if not self._rates.admits(client.host, self._clock.monotonic()):
            self.rate_exceeded += 1
            return ReasonCode.CONNECTION_RATE_EXCEEDED
        return ReasonCode.SUCCESS


class FileAuthenticator:
    """Checks user name and password against the password file."""

    def __init__(
        self, files: AccessFiles, settings: MqttAccessSettings, run_blocking: RunBlocking
    ) -> None:
        self._files: Final = files
        self._anonymous: Final = settings.anonymous
        self._run_blocking: Final = run_blocking
        self._running = 0
        # Checked for unknown users, so that the time taken does not show which users exist.
        self._decoy: Final = hash_password(b"") if settings.password_file else None

    async def authenticate(
        self, client: Client, password: bytes | None, connect: Connect
    ) -> Verdict:
        del connect
        if client.transport == INTERNAL_TRANSPORT:
            return Verdict(principal=client.username or "", is_superuser=True)
        users = self._files.users
        if client.username is None:
            if self._anonymous == "deny" or (self._anonymous == "auto" and users is not None):
                return Verdict(ReasonCode.NOT_AUTHORIZED, reason="a user name is required")
            return Verdict()
        if users is None:
            return self._accept(client.username)
        hashed = users.get(client.username, self._decoy)
        if self._running >= HASHES_MAX:
            return Verdict(ReasonCode.SERVER_BUSY, reason="too many clients connect")
        self._running += 1
        try:
            given = password or b""
            assert hashed is not None
            is_right = await self._run_blocking(lambda: hashed.verify(given))
        finally:
            self._running -= 1
        if not is_right or client.username not in users:
            return Verdict(
                ReasonCode.BAD_USER_NAME_OR_PASSWORD, reason="user name or password is wrong"
            )
        return self._accept(client.username)

    def _accept(self, username: str) -> Verdict:
        # A name that was not checked against a password gives no rights.
        is_superuser = self._files.users is not None and username in self._files.rules.superusers
        return Verdict(principal=username, is_superuser=is_superuser)

    def exchange(self, method: str) -> Exchange | None:
        del method
        return None


class RuleAuthorizer:
    """Applies the access rules."""

    def __init__(self, files: AccessFiles) -> None:
        self._files: Final = files
        self.denials = 0

    @property
    def revision(self) -> int:
        return self._files.revision

    def allows(self, client: Client, action: Action, topic: str, qos: int, retain: bool) -> bool:
        del qos, retain
        if client.is_superuser:
            return True
        is_allowed = self._rules_of(client).allows(action.value, topic)
        if not is_allowed:
            self.denials += 1
        return is_allowed

    def _rules_of(self, client: Client) -> ClientRules:
        state = client.rule_state
        if isinstance(state, tuple) and state[0] == self._files.revision:
            rules: ClientRules = state[1]
            return rules
        principal = Principal(
            client.client_id, client.principal or None, client.host, client.is_superuser
        )
        rules = self._files.rules.for_client(principal)
        client.rule_state = (self._files.revision, rules)
        return rules


class PublishRates:
    def __init__(self, limits: RateLimits, clock: Clock) -> None:
        self._limits: Final = limits
        self._clock: Final = clock
        self.is_active: Final = bool(limits.publishes or limits.publish_bytes)

    def pause_s(self, client: Client, messages: int, size: int) -> float:
        if not self.is_active or client.transport == INTERNAL_TRANSPORT:
            return 0.0
        now = self._clock.monotonic()
        rate = client.rate_state
        if not isinstance(rate, PublishRate):
            rate = client.rate_state = PublishRate(self._limits, now)
        return rate.delay_s(messages, size, now)


class FlappingObserver:
    """Bans client ids that disconnect too often."""

    def __init__(self, limits: FlappingLimits, blacklist: Blacklist, clock: Clock) -> None:
        self._detector: Final = FlappingDetector(limits)
        self._blacklist: Final = blacklist
        self._clock: Final = clock

    def connected(self, client: Client) -> None:
        """A connection is counted when it ends."""

    def disconnected(self, client: Client, reason: str, *, is_clean: bool) -> None:
        del reason, is_clean
        if client.transport == INTERNAL_TRANSPORT:
            return
        end_ms = self._detector.disconnected(client.client_id, self._clock.now_ms())
        if end_ms is not None:
            entry = BlacklistEntry(
                kind="client", value=client.client_id, expires_at_ms=end_ms, reason="flapping"
            )
            with suppress(BadRequestError):  # the blacklist is full
                self._blacklist.add(entry)
            _log.warning("mqtt_client_flapping", client=client.client_id, until_ms=end_ms)
