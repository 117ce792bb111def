"""SetSchemaMetadata: set the name or version of the schema of the key or value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues, Columns
from headrace.data.schema import Schema, Type
from headrace_transforms.columnar import filled_with_defaults
from headrace_transforms.key_or_value import (
    KeyOrValue,
    SchemaCache,
    TransformResult,
    defaults_filler,
    replace_null_key,
    row_defaults,
)
from headrace_transforms.record_errors import place_of, record_error, type_name


class SetSchemaMetadataConfig(Config):
    """Configuration of SetSchemaMetadata."""

    schema_name: str | None = key("schema.name", default=None, doc="The schema's new name.", importance=Importance.HIGH)
    schema_version: int | None = key(
        "schema.version", default=None, doc="The schema's new version.", importance=Importance.HIGH
    )
    replace_null_with_default: bool = replace_null_key()

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Check that a name or a version is set. An invalid version counts as set, because it has its own error."""
        if all(name in values and values[name] is None for name in ("schema.name", "schema.version")):
            yield ConfigError("", None, "Neither schema name nor version configured")


class SetSchemaMetadata(KeyOrValue[SetSchemaMetadataConfig]):
    """Sets the name or version of the schema. A value without a schema is an error unless it is null."""

    abstract = True

    def configure(self, config: SetSchemaMetadataConfig) -> None:
        """Store the name and version."""
        self._changes: dict[str, Any] = {}
        if config.schema_name is not None:
            self._changes["name"] = config.schema_name
        if config.schema_version is not None:
            self._changes["version"] = config.schema_version
        self._replace_null = config.replace_null_with_default
        self._schemas = SchemaCache(lambda schema: schema.replace(**self._changes))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Change the schema, and replace null fields with defaults."""
        if schema is None:
            value = next((value for value in values if value is not None), None)
            if value is not None:
                found = f"{type_name(value)} without a schema"
                message = "Schema required for [updating schema metadata]"
                raise record_error(message, place_of(self.side), "a value with a schema", found)
            return None, values
        if schema.type is Type.STRUCT:
            values = defaults_filler(schema, self._replace_null)(values)
        return self._schemas(schema), values

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Change the schema, and replace null fields with defaults.

        Returns None if `change` must do this, because the values are rows, or because they have no schema.
        """
        if schema is None:
            return None
        if schema.type is Type.STRUCT:
            if isinstance(values, Columns):
                values = filled_with_defaults(schema, values, self._replace_null)
            elif self._replace_null and row_defaults(schema):
                return None
        return self._schemas(schema), values


class SetSchemaMetadataKey(SetSchemaMetadata):
    """SetSchemaMetadata applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.SetSchemaMetadata$Key",)


class SetSchemaMetadataValue(SetSchemaMetadata):
    """SetSchemaMetadata applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.SetSchemaMetadata$Value",)
