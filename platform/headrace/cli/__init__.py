"""The command-line tools of the platform: `connect-standalone` and `headrace`."""
