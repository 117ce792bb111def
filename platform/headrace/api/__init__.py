"""The API for authors of connectors, transforms, predicates, converters and config providers.

A plug-in imports only `headrace.api` and `headrace.data`. The platform finds plug-ins by their entry points and on
``plugin.path``. A directory of ``plugin.path`` may contain packages with entry points, and modules whose source
mentions headrace. The example ``configs/plugins/countdown.py`` is a source, a sink and a transform in one file.

This package does no I/O.
"""
