"""Sets the hooks of the access policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.extras.stored_table import StoredTable
from penstock.brokers.mqtt.policy.access import (
    AccessGate,
    FileAuthenticator,
    FlappingObserver,
    PublishRates,
    RuleAuthorizer,
)
from penstock.brokers.mqtt.policy.access_files import AccessFiles
from penstock.brokers.mqtt.policy.flapping import FlappingLimits
from penstock.brokers.mqtt.policy.rates import ConnectionRates, RateLimits
from penstock.brokers.mqtt.policy.stored_blacklist import TOPIC, StoredBlacklist
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker

EXPIRY_INTERVAL_S: Final = 60.0


class AccessPolicy:
    """The parts of the access policy that others use."""

    def __init__(self, broker: MqttBroker) -> None:
        """Raise `SettingsError` when a file cannot be read."""
        settings = broker.all_settings.mqtt_access
        clock = broker.clock
        limits = RateLimits(
            connections=settings.connection_rate,
            connections_per_address=settings.connection_rate_per_address,
            publishes=settings.publish_rate,
            publish_bytes=settings.publish_bytes_rate,
        )
        self._broker: Final = broker
        self.files: Final = AccessFiles(settings.password_file, settings.acl_file)
        self.is_open: Final = not settings.password_file and not settings.acl_file
        """Whether every client may do everything."""
        table = StoredTable(broker.drivers, TOPIC, broker.namespace)
        self.blacklist: Final = StoredBlacklist(table, clock)
        self._gate: Final = AccessGate(
            self.blacklist.blacklist, ConnectionRates(limits, clock.monotonic()), clock
        )
        hooks = broker.hooks
        self._authorizer: RuleAuthorizer | None = None
        hooks.gate = self._gate
        hooks.authenticator = FileAuthenticator(self.files, settings, broker.run_blocking)
        if settings.acl_file:
            self._authorizer = hooks.authorizer = RuleAuthorizer(self.files)
        if settings.subscription_refusal == "unspecified_error":
            hooks.subscription_refusal = ReasonCode.UNSPECIFIED_ERROR
        rates = PublishRates(limits, clock)
        if rates.is_active:
            hooks.rates = rates
        if settings.flapping_disconnects:
            flapping = FlappingLimits(
                settings.flapping_disconnects,
                settings.flapping_window_ms,
                settings.flapping_ban_ms,
            )
            hooks.observers.append(FlappingObserver(flapping, self.blacklist.blacklist, clock))
        if not self.is_open:
            broker.reload_files = self.reload
        broker.on_start(self._start)

    @property
    def denials(self) -> int:
        """How many publishes and subscriptions the rules denied."""
        return 0 if self._authorizer is None else self._authorizer.denials

    async def _start(self) -> None:
        await self.blacklist.load()
        self._broker.spawn(self._watch_files(), "mqtt-access-files")
        self._broker.spawn(self._remove_expired(), "mqtt-blacklist-expiry")

    async def reload(self) -> None:
        """Read the files again."""
        await self.files.reload(self._broker.run_blocking, is_forced=True)

    async def _watch_files(self) -> None:
        interval_s = self._broker.all_settings.mqtt_access.file_check_interval_ms / 1000
        while not self.is_open:
            await asyncio.sleep(interval_s)
            await self.files.reload(self._broker.run_blocking)

    async def _remove_expired(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            self.blacklist.blacklist.remove_expired()
