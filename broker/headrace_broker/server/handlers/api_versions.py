"""ApiVersions (18): the APIs and versions that this node supports, as declared by the handler modules.

Version 3 is flexible. Its request contains the name and version of the client software (KIP-511), and its response
contains features in tagged fields (KIP-482, KIP-584). The response to an unsupported version has the format of version
0 and error 35 (UNSUPPORTED_VERSION).
"""

from __future__ import annotations

import re
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
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

if TYPE_CHECKING:
    from headrace_broker.server.network.routing import Route

API_KEY = ApiKey.API_VERSIONS
VERSIONS = (0, 4)
LISTENERS = BROKER_AND_CONTROLLER

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: RequestContext, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    """Respond with the advertised version ranges and, from version 3 on, the features."""
    if version >= 3:
        if not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.client_software_name = request.client_software_name
    response = ApiVersionsResponse(api_keys=_api_keys(context.node.router.routes_for(context.listener)))
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
    """Return the response to an ApiVersions request in an unsupported version. The caller encodes it in version 0."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys(routes))


def _api_keys(routes: Mapping[int, Route]) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=routes[key].advertised[0], max_version=routes[key].advertised[1])
        for key in sorted(routes)
    ]
