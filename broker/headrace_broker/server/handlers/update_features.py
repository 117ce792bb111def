"""UpdateFeatures (57): which feature levels are in force (KIP-584).

There is one level of each feature, so this tells whether what is asked for is the case, and changes nothing.
"""

from __future__ import annotations

from headrace_broker.metadata.features import update_features
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.UPDATE_FEATURES
VERSIONS = (0, 2)
LISTENERS = EVERYWHERE
IS_FORWARDED = True


async def handle(context: RequestContext, request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
    """Answer each feature."""
    return await context.controller.submit(lambda image: update_features(image, request, version))
