"""One module per API, each declaring `API_KEY`, `VERSIONS` and its handler; `server.routing` finds them here."""
