"""ApiVersions (18): what this broker serves, from the handler modules' own declarations.

Version notes: 0-2 plain; 3+ flexible, features in tagged fields (KIP-482, KIP-584).  A version that is not known here
is answered in the layout of version 0 with error 35, whatever the client sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace_broker.metadata.cluster import METADATA_VERSION, METADATA_VERSION_FEATURE, METADATA_VERSION_MIN
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import EVERYWHERE

if TYPE_CHECKING:
    from headrace_broker.server.network.routing import Route

API_KEY = ApiKey.API_VERSIONS
VERSIONS = (0, 4)
LISTENERS = EVERYWHERE


def handle(context: RequestContext, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    """Answer the advertised ranges and, from version 3 on, the features."""
    response = ApiVersionsResponse(api_keys=_api_keys(context.node.router.routes_of(context.listener)))
    if version >= 3:
        image = context.image
        response.supported_features = [
            SupportedFeatureKey(
                name=METADATA_VERSION_FEATURE, min_version=METADATA_VERSION_MIN, max_version=METADATA_VERSION
            )
        ]
        response.finalized_features_epoch = max(image.offset, 0)
        response.finalized_features = [
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in image.features.items()
        ]
    return response


def unsupported_version_response(routes: Mapping[int, Route]) -> ApiVersionsResponse:
    """The answer to a version we do not know, to be sent as version 0."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys(routes))


def _api_keys(routes: Mapping[int, Route]) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=routes[key].advertised[0], max_version=routes[key].advertised[1])
        for key in sorted(routes)
    ]
