"""JSONPath queries with the semantics of Jayway's JsonPath for Java, which Confluent's transforms use.

The queries run on maps, structs and lists. There is one difference from RFC 9535: a filter such as ``[?(@.a == 1)]``
on an object tests the object itself and not its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonpath import JSONPath, JSONPathEnvironment, JSONPathMatch
    from jsonpath.filter import BaseExpression


class JsonPath:
    """A compiled JSONPath query."""

    __slots__ = ("_path",)

    def __init__(self, query: str) -> None:
        """Compile the query. Raises ValueError if it is invalid."""
        from jsonpath import JSONPath, JSONPathError

        if not query.startswith("$"):
            raise ValueError(f"Invalid JSONPath {query}: it must start with $")
        try:
            path = _environment().compile(query)
        except JSONPathError as error:
            raise ValueError(f"Invalid JSONPath {query}: {error.args[0]}") from None
        if not isinstance(path, JSONPath):
            raise ValueError(f"Invalid JSONPath {query}: it must be a single path, without | and &")
        self._path = path

    def select(self, value: Any) -> list[Any]:
        """Return the values that the query selects in `value`."""
        return [match.obj for match in self._path.finditer(value)]

    def missing_or_null(self, value: Any) -> bool:
        """Whether a field that the query or one of its filters uses is missing or null in `value`."""
        selected = [value]
        for segment in self._path.segments:
            for queries in map(_fields_of_filter, segment.selectors):
                items = [item for parent in selected for item in _tested_items(parent)]
                if any(_all_null(query, item) for query in queries for item in items):
                    return True
            selected = [match.obj for parent in selected for match in segment.resolve([_root_match(parent)])]
            if all(item is None for item in selected):
                return not any(map(_fields_of_filter, segment.selectors))
        return False


def _all_null(query: JSONPath, item: Any) -> bool:
    return all(match.obj is None for match in query.finditer(item))


def _tested_items(parent: Any) -> Iterable[Any]:
    return [parent] if isinstance(parent, Mapping) else parent if isinstance(parent, list) else []


def _root_match(value: Any) -> JSONPathMatch:
    from jsonpath import JSONPathMatch

    return JSONPathMatch(filter_context={}, obj=value, parent=None, path="$", parts=(), root=value)


def _fields_of_filter(selector: Any) -> list[JSONPath]:
    """Return the paths in a filter selector that are relative to the current node (``@``)."""
    from jsonpath.selectors import Filter

    return list(_relative_paths(selector.expression)) if isinstance(selector, Filter) else []


def _relative_paths(expression: BaseExpression) -> Iterator[JSONPath]:
    from jsonpath.filter import RelativeFilterQuery

    if isinstance(expression, RelativeFilterQuery):
        yield expression.path
        return
    for child in expression.children():
        yield from _relative_paths(child)


@lru_cache(maxsize=1)
def _environment() -> JSONPathEnvironment:
    """Return the environment of the library jsonpath, with Jayway's filters.

    It is created on first use, because few workers use JSONPath.
    """
    from jsonpath import JSONPathEnvironment
    from jsonpath.parse import Parser
    from jsonpath.selectors import Filter

    class ObjectFilter(Filter):
        """A filter that tests an object itself, and each item of an array."""

        def resolve(self, node: JSONPathMatch) -> Iterable[JSONPathMatch]:
            if isinstance(node.obj, Mapping):
                node = node.new_child([node.obj], 0)
            return super().resolve(node)

    class ObjectFilterParser(Parser):
        """Creates an ObjectFilter for each filter selector."""

        def parse_filter_selector(self, *arguments: Any, **options: Any) -> Filter:
            found = super().parse_filter_selector(*arguments, **options)
            return ObjectFilter(env=found.env, token=found.token, expression=found.expression)

    class ObjectFilterEnvironment(JSONPathEnvironment):
        """Parses queries with ObjectFilterParser."""

        parser_class = ObjectFilterParser

    return ObjectFilterEnvironment()
