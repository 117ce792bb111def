"""TLS: settings, key stores, and the contexts of listeners and clients."""
