"""The base class of all plug-ins: its type parameter is the configuration model.

    class Poller(SourceTask[PollerConfig]):
        def start(self, config: PollerConfig) -> None: ...

`Poller.config_model` is then `PollerConfig`, and `self.config` is an instance of it. The type parameter is the only
place that names the model.
"""

from __future__ import annotations

import typing
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar

from headrace.api.config import Config

C = TypeVar("C", bound=Config, default=Config)
"""The configuration model of a plug-in."""


class Plugin(Generic[C]):
    """The base class of connectors, tasks, transforms, predicates, converters and config providers.

    The platform creates instances without arguments. A class that is only a base class for plug-ins sets
    ``abstract = True`` in its body.
    """

    config_model: ClassVar[type[Config]] = Config
    """The type parameter of the class, `Config` by default. The platform parses configurations with it."""

    java_names: ClassVar[tuple[str, ...]] = ()
    """Full Java class names under which configurations may refer to the plug-in, the preferred one first."""

    version: ClassVar[str] = "0.1.0"
    """The version that ``/connector-plugins`` shows."""

    required_worker_key: ClassVar[str] = ""
    """A boolean key that must be true in the worker's configuration to permit the plug-in. Only for transforms."""

    file_keys: ClassVar[tuple[str, ...]] = ()
    """The configuration keys whose values are paths of files that a transform, predicate or converter reads.

    If a sink runs the plug-in on other machines, the platform sends the files there, and replaces the paths.
    """

    config: C
    """The parsed configuration. The platform sets it before it calls `start` or `configure`."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "config_model" in cls.__dict__:
            raise TypeError(
                f"{cls.__qualname__} sets config_model: declare the configuration model as the type parameter instead, "
                f"for example class {cls.__name__}(SourceTask[{cls.config_model.__name__}])"
            )
        model = _declared_model(cls)
        if model is not None:
            cls.config_model = model

    @classmethod
    def display_class(cls) -> str:
        """Return the class name for the REST API: the Java class name that existing tools know, if there is one."""
        return cls.java_names[0] if cls.java_names else f"{cls.__module__}:{cls.__qualname__}"


def _declared_model(cls: type[Plugin[Any]]) -> type[Config] | None:
    """Return the configuration model that a class's bases have as type parameter. Raises TypeError if it is invalid."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        origin = typing.get_origin(base)
        if not (isinstance(origin, type) and issubclass(origin, Plugin)):
            continue
        for argument in typing.get_args(base):
            if isinstance(argument, type) and issubclass(argument, Config):
                return argument
            if not isinstance(argument, typing.TypeVar):
                raise TypeError(
                    f"{cls.__qualname__}: the type parameter of {origin.__name__} must be a subclass of "
                    f"headrace.api.Config that is defined before the class, not {argument!r}"
                )
    return None
