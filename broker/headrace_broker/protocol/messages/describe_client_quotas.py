"""DescribeClientQuotas (48): list the quotas of users, client ids and IP addresses that match a filter (KIP-546)."""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Request,
    Response,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
)


class EntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class ValueData(Message):
    key: str = string()
    value: float = float64()


class EntryData(Message):
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(Response, api_key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entries: list[EntryData] | None = array(EntryData, nullable="0+")


class ComponentData(Message):
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable="0+")


class DescribeClientQuotasRequest(Request[DescribeClientQuotasResponse], api_key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()
