"""BrokerRegistration (62): a starting broker registers with the controller (KIP-631).

Version 2 adds log directories (KIP-858), version 3 adds the broker epoch at the last clean shutdown (KIP-966), and
version 4 adds features whose minimum level is 0.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Request,
    Response,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class BrokerRegistrationResponse(Response, api_key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    broker_epoch: int = int64(default=-1)


class Listener(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class Feature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class BrokerRegistrationRequest(Request[BrokerRegistrationResponse], api_key=62, versions="0-4", flexible="0+"):
    broker_id: int = int32()
    cluster_id: str = string()
    incarnation_id: bytes = uuid()
    listeners: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)
    rack: str | None = string(nullable="0+")
    is_migrating_zk_broker: bool = boolean("1+")
    log_dirs: list[bytes] = array(uuid, "2+", ignorable=True)
    previous_broker_epoch: int = int64("3+", default=-1, ignorable=True)
