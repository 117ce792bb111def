"""The herder: which connectors there are, what state they shall be in and are in, and who runs their tasks."""
