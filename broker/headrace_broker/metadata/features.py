"""UpdateFeatures (KIP-584): accepts only the current level of each feature, which is the only supported level."""

from __future__ import annotations

from headrace_broker.metadata.cluster import METADATA_VERSION, METADATA_VERSION_FEATURE
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


def update_features(image: MetadataImage, request: UpdateFeaturesRequest) -> ControllerResult[UpdateFeaturesResponse]:
    """Handle UpdateFeatures: reject every level other than the current one. The result contains no records."""
    error_by_feature = {update.feature: _validate_update(image, update) for update in request.feature_updates}
    errors = [error for error in error_by_feature.values() if error is not None]
    response = UpdateFeaturesResponse(error_message=None)
    if errors:  # all features keep their levels, so the error is a top-level error, as in Apache Kafka
        response.error_code, response.error_message = ErrorCode.INVALID_UPDATE_VERSION, " ".join(errors)
    else:
        response.results = [UpdatableFeatureResult(feature=name, error_message="NONE") for name in error_by_feature]
    return ControllerResult(response)


def _validate_update(image: MetadataImage, update: FeatureUpdateKey) -> str | None:
    if update.max_version_level == image.features.get(update.feature, 0):
        return None
    if update.feature == METADATA_VERSION_FEATURE:
        return (
            f"{METADATA_VERSION_FEATURE} is {image.features.get(update.feature)} and cannot be set to "
            f"{update.max_version_level}: this version of headrace supports only {METADATA_VERSION}."
        )
    return f"This version of headrace does not support feature {update.feature}."
