"""The base class of all plug-ins: a configuration model, Java class names and a version."""

from __future__ import annotations

from typing import ClassVar

from headrace.api.config import Config


class Plugin:
    """The base class of connectors, tasks, transforms, predicates, converters and config providers.

    The platform creates instances without arguments. A class that is only a base class for plug-ins sets
    ``abstract = True`` in its body.
    """

    config_model: ClassVar[type[Config]] = Config
    """The configuration model; the platform parses the configuration and passes an instance to the plug-in."""

    java_names: ClassVar[tuple[str, ...]] = ()
    """Full Java class names under which configurations may refer to the plug-in, the preferred one first."""

    version: ClassVar[str] = "0.1.0"
    """The version that ``/connector-plugins`` shows."""

    @classmethod
    def display_class(cls) -> str:
        """Return the class name for the REST API: the Java class name that existing tools know, if there is one."""
        return cls.java_names[0] if cls.java_names else f"{cls.__module__}:{cls.__qualname__}"
