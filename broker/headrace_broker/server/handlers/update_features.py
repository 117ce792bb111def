"""UpdateFeatures (57): set the finalized feature levels (KIP-584).

This broker cannot change the level of a feature. The handler only accepts a request for the current levels.
"""

from __future__ import annotations

from headrace_broker.metadata.features import update_features
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.UPDATE_FEATURES
VERSIONS = (0, 2)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True


async def handle(context: RequestContext, request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
    """Check each feature. An invalid level of one feature is an error of the whole request."""
    return await context.controller.submit(lambda image: update_features(image, request))
