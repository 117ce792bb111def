"""The command lines of the platform: connect-standalone and headrace."""
