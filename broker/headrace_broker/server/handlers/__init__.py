"""The request handlers, one module per API; each declares `API_KEY`, `VERSIONS` and a handler for `network.routing`."""
