"""AlterClientQuotas (49): set or remove quotas (KIP-546)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, float64, int16, int32, string


class EntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class AlterClientQuotasResponseEntryData(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: list[EntityData] = array(EntityData)


class AlterClientQuotasResponse(Response, api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    entries: list[AlterClientQuotasResponseEntryData] = array(AlterClientQuotasResponseEntryData)


class OpData(Message):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class AlterClientQuotasRequestEntryData(Message):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(Request[AlterClientQuotasResponse], api_key=49, versions="0-1", flexible="1+"):
    entries: list[AlterClientQuotasRequestEntryData] = array(AlterClientQuotasRequestEntryData)
    validate_only: bool = boolean()
