"""CreateAcls (30): create ACLs.

Version 1 adds prefixed patterns (KIP-290), and version 2 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int8, int16, int32, string


class AclCreationResult(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreateAclsResponse(Response, api_key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


class AclCreation(Message):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(Request[CreateAclsResponse], api_key=30, versions="1-3", flexible="2+"):
    creations: list[AclCreation] = array(AclCreation)
