"""UpdateFeatures: what may be finalized (KIP-584).  Every feature has one level here, so all that can be asked for is
what is in force; anything else is refused with the reason."""

from __future__ import annotations

from headrace_broker.metadata.cluster import METADATA_VERSION, METADATA_VERSION_FEATURE
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


def update_features(
    image: MetadataImage, request: UpdateFeaturesRequest, version: int
) -> Outcome[UpdateFeaturesResponse]:
    """Answer whether the features have the levels that are asked for; nothing is ever changed."""
    faults = {update.feature: _fault(image, update) for update in request.feature_updates}
    found = [fault for fault in faults.values() if fault is not None]
    response = UpdateFeaturesResponse(error_message=None)
    if version >= 2 and found:
        response.error_code, response.error_message = ErrorCode.INVALID_UPDATE_VERSION, " ".join(found)
    response.results = [
        UpdatableFeatureResult(
            feature=name,
            error_code=ErrorCode.NONE if fault is None else ErrorCode.INVALID_UPDATE_VERSION,
            error_message=fault,
        )
        for name, fault in faults.items()
    ]
    return Outcome(response)


def _fault(image: MetadataImage, update: FeatureUpdateKey) -> str | None:
    if update.max_version_level == image.features.get(update.feature, 0):
        return None
    if update.feature == METADATA_VERSION_FEATURE:
        return (
            f"{METADATA_VERSION_FEATURE} is {image.features.get(update.feature)} and cannot become "
            f"{update.max_version_level}: this version of headrace writes {METADATA_VERSION}."
        )
    return f"This version of headrace has no feature {update.feature}."
