"""DescribeAcls (29): list the ACLs that match a filter.

Version 1 adds prefixed patterns (KIP-290), and version 2 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int8, int16, int32, string


class AclDescription(Message):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(default=3)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(Response, api_key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


class DescribeAclsRequest(Request[DescribeAclsResponse], api_key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()
