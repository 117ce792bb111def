"""Code that several connectors share."""
