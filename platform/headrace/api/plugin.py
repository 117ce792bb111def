"""What every plug-in class has in common: a configuration model, Java names, a version."""

from __future__ import annotations

from typing import ClassVar

from headrace.api.config import Config


class Plugin:
    """The base of connectors, tasks, transforms, predicates, converters and config providers.

    The class is made without arguments. A class that is only a base for others says ``abstract = True`` in its body.
    """

    config_model: ClassVar[type[Config]] = Config
    """The keys that the plug-in reads; the platform parses them and hands over an instance."""

    java_names: ClassVar[tuple[str, ...]] = ()
    """Full Java class names that people's files may use for it, the first one preferred."""

    version: ClassVar[str] = "0.1.0"
    """What ``/connector-plugins`` shows."""

    @classmethod
    def display_class(cls) -> str:
        """The class name that the REST API shows: the Java one where there is one, so that existing tools know it."""
        return cls.java_names[0] if cls.java_names else f"{cls.__module__}:{cls.__qualname__}"
