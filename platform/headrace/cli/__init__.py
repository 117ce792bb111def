"""The command-line tools of the platform: `headrace`, `connect-standalone` and `connect-distributed`."""
