"""Finding plug-ins and checking their configuration.

`registry` turns names (Java's, short ones, Python paths) into classes; `variables` resolves ``${file:…}`` and its like
by `config_providers`; `connector_config` has the framework's own keys and `validation` what Connect's validate endpoint
answers.
"""
