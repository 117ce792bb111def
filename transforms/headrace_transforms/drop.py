"""Drop: replace the key or value of records with null, as Confluent's transform Drop does."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues
from headrace.data.schema import Schema
from headrace_transforms.key_or_value import KeyOrValue, TransformResult
from headrace_transforms.record_errors import place_of, record_error, schema_type_name


class DropConfig(Config):
    """Configuration of Drop."""

    schema_behavior: str = key(
        "schema.behavior",
        default="nullify",
        one_of=("nullify", "retain", "force_optional"),
        case_insensitive=True,
        doc="What happens to the schema. nullify: it becomes null. retain: it stays; a schema that is not optional is "
        "an error. force_optional: it stays and becomes optional.",
        importance=Importance.MEDIUM,
    )


class Drop(KeyOrValue[DropConfig]):
    """Replaces each key or value with null. The records are kept."""

    abstract = True

    def configure(self, config: DropConfig) -> None:
        """Store the behavior."""
        self._behavior = config.schema_behavior.lower()

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Replace each value with null. Raises DataError if the schema must be retained and is not optional."""
        return self._schema(schema), [None] * len(values)

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult:
        """Replace each value with null, without converting the values to rows."""
        return self._schema(schema), [None] * len(values)

    def _schema(self, schema: Schema | None) -> Schema | None:
        if schema is None or self._behavior == "nullify":
            return None
        if schema.optional or self._behavior == "force_optional":
            return schema.replace(optional=True)
        message = (
            f"schema.behavior=retain cannot replace a {self.side} with null, because its schema {schema!r} is not "
            "optional; use schema.behavior=force_optional or nullify"
        )
        raise record_error(message, place_of(self.side), "an optional schema", f"required {schema_type_name(schema)}")


class DropKey(Drop):
    """Drop applied to the key."""

    side = "key"
    java_names = ("io.confluent.connect.transforms.Drop$Key",)


class DropValue(Drop):
    """Drop applied to the value."""

    side = "value"
    java_names = ("io.confluent.connect.transforms.Drop$Value",)
