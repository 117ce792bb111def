"""Listeners, connections, routing of requests by API key, the purgatory, and limits on memory and sockets.

Limits: `connection_quotas` (number of connections), `file_descriptor_limit`, `request_memory`
(`queued.max.request.bytes`), `connection.ConnectionLimits` (one connection) and `large_requests` (long requests).
"""
