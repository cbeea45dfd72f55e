"""What the administration APIs share: settings in a request, and the response to a rejected one."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.wire.fields import Fields
from penstock.errors import BadRequestError, StoreError


class RejectedError(Exception):
    """A request that is rejected with one of Kafka's own codes."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def rejected(error: StoreError | RejectedError) -> dict[str, object]:
    if isinstance(error, RejectedError):
        code = error.code
    elif isinstance(error, BadRequestError):
        code = ErrorCode.invalid_config
    else:
        code = code_of(error)
    return {"error_code": code, "error_message": str(error)}


def requested_configs(request: Fields) -> dict[str, str | None]:
    return {
        config.text("name"): config.optional_text("value") for config in request.items_of("configs")
    }
