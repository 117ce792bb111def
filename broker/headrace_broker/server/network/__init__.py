"""Listeners, connections, routing of requests by API key, the purgatory, and limits on memory and sockets.

These modules and classes limit the use of resources:

* `connection_quotas`: the number of connections.
* `file_descriptor_limit`: the number of file descriptors.
* `request_memory`: the memory for requests (`queued.max.request.bytes`).
* `connection.ConnectionLimits`: the resources of one connection.
* `large_requests`: requests with very many items.
"""
