"""One module per API, each declaring `API_KEY`, `VERSIONS` and its handler; `network.routing` finds them here."""
