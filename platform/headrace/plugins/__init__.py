"""Finding plug-ins and checking their configuration.

`registry` turns names (Java's, short ones, Python paths) into classes; `config_providers` resolves ``${file:…}`` and
its like; `connector_config` has the framework's own keys and `validation` what Connect's validate endpoint answers.
"""
