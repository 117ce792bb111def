"""What the author of a connector, transform, predicate or converter needs, and nothing else.

Core: no input or output of its own. A plug-in imports `headrace.api` and `headrace.data` only; the platform finds it by
entry point or on ``plugin.path`` and never the other way round: a directory there may hold packages with entry points,
and modules whose text names headrace. ``configs/plugins/countdown.py`` is a source, a sink and a transform in one file.
"""
