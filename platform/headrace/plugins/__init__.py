"""Finds plug-ins and validates their configuration.

`registry` maps names (Java class names, short names, Python paths) to classes. `variables` resolves variables such as
``${file:…}`` with `config_providers`. `connector_config` defines the framework's own configuration keys, and
`validation` implements Connect's validate endpoint.
"""
