"""The request handlers, one module per API.

Each module declares `API_KEY`, `VERSIONS` and a handler, which `network.routing` calls.
"""
