"""DescribeClientQuotas (48): this broker has no quotas, so the response to a valid filter is empty (KIP-546).

Invalid filters are rejected with Apache Kafka's errors, so that users of the tools see their mistakes.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_CLIENT_QUOTAS
VERSIONS = (0, 1)

_ENTITY_TYPES = ("user", "client-id", "ip")
_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_SPECIFIED = 0, 1, 2


def handle(context: RequestContext, request: DescribeClientQuotasRequest, version: int) -> DescribeClientQuotasResponse:
    """Return no entries, or the error of an invalid filter."""
    try:
        _validate(request.components)
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(entries=[])


def _validate(components: list[ComponentData]) -> None:
    """Raise ApiError if the filter is invalid."""
    seen: set[str] = set()
    for component in components:
        entity_type = component.entity_type
        if not entity_type:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if entity_type in seen:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Entity type {entity_type} cannot appear more than once in the filter."
            )
        if entity_type not in _ENTITY_TYPES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
        _validate_match(component)
        seen.add(entity_type)
    if "ip" in seen and len(seen) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )


def _validate_match(component: ComponentData) -> None:
    """Raise ApiError if the component's match type is unknown, or does not fit its match string."""
    if component.match_type not in (_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_SPECIFIED):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
    if component.match_type == _MATCH_EXACT:
        if component.match is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
    elif component.match is not None:
        name = "MATCH_TYPE_DEFAULT" if component.match_type == _MATCH_DEFAULT else "MATCH_TYPE_SPECIFIED"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Request specified {name}, but also specified a match string.")
