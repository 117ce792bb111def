"""Sockets and requests: listeners, connections, routing by API key, requests that wait, and what bounds them."""
