"""SetSchemaMetadata: give the schema of the key or value a name or version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError, DataError
from headrace.data.batch import Batch
from headrace.data.columns import Compact
from headrace.data.schema import Schema, Type
from headrace_transforms.key_or_value import (
    Changed,
    KeyOrValue,
    SchemaCache,
    defaults_filler,
    replace_null_key,
    row_defaults,
)


class SetSchemaMetadataConfig(Config):
    """The keys of SetSchemaMetadata."""

    schema_name: str | None = key("schema.name", default=None, doc="The schema's new name.", importance=Importance.HIGH)
    schema_version: int | None = key(
        "schema.version", default=None, doc="The schema's new version.", importance=Importance.HIGH
    )
    replace_null_with_default: bool = replace_null_key()

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """A name or a version; one that is no number has been given, too."""
        if all(name in values and values[name] is None for name in ("schema.name", "schema.version")):
            yield ConfigError("", None, "Neither schema name nor version configured")


class SetSchemaMetadata(KeyOrValue):
    """The values stay; without a schema only nulls pass."""

    abstract = True
    config_model = SetSchemaMetadataConfig

    def configure(self, config: SetSchemaMetadataConfig) -> None:
        """Take name and version."""
        self._changes: dict[str, Any] = {}
        if config.schema_name is not None:
            self._changes["name"] = config.schema_name
        if config.schema_version is not None:
            self._changes["version"] = config.schema_version
        self._replace_null = config.replace_null_with_default
        self._schemas = SchemaCache(lambda schema: schema.replace(**self._changes))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> Changed:
        """Change the schema alone."""
        if schema is None:
            if any(value is not None for value in values):
                raise DataError("Schema required for [updating schema metadata]")
            return None, values
        if schema.type is Type.STRUCT:
            values = defaults_filler(schema, self._replace_null)(values)
        return self._schemas(schema), values

    def change_compact(self, schema: Schema | None, values: Compact, batch: Batch) -> Changed | None:
        """Change the schema alone, where no defaults are to be filled in."""
        if schema is None or (schema.type is Type.STRUCT and self._replace_null and row_defaults(schema)):
            return None
        return self._schemas(schema), values


class SetSchemaMetadataKey(SetSchemaMetadata):
    """SetSchemaMetadata for the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.SetSchemaMetadata$Key",)


class SetSchemaMetadataValue(SetSchemaMetadata):
    """SetSchemaMetadata for the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.SetSchemaMetadata$Value",)
