"""The Python transform: an expression, or a function in a file, which runs in the task's process.

    transforms=total
    transforms.total.type=Python
    transforms.total.expression={**value, "total": value["price"] * value["count"]}

The parameter names of a function select the attributes of a record that the function receives: `value`, `key`, `topic`,
`partition`, `timestamp` (in ms), `headers` and `record`. An expression can use the same names.

If the result is None, the record is dropped. If the result is a record, it replaces the original record. Every other
result is the record's new value.

A function with the single parameter `values` receives a list with the values of many records, and returns a list with
one result for each value. If such a call fails, the function is called again for each value. Every other function is
called once for each record, so it may keep state.

A user who may configure this transform may run code on the worker. The worker's key `python.transform.enable` must
therefore permit the transform.
"""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError, DataError, RecordErrors, RetriableError
from headrace.api.transform import Transformation
from headrace.data.batch import Batch, from_records
from headrace.data.headers import Headers
from headrace.data.records import ConnectRecord
from headrace.data.schema import Schema
from headrace.data.struct import from_rows, to_rows
from headrace_transforms.result_schema import ResultSchemas

ATTRIBUTES = ("value", "key", "topic", "partition", "timestamp", "headers", "record")
_LIST = "values"
_EXPRESSION_FILE = "<expression>"


def _compile(text: str) -> Any:
    """Compile an expression. Raises ValueError."""
    try:
        code = compile(text, _EXPRESSION_FILE, "eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        where = f" (column {error.offset})" if isinstance(error, SyntaxError) and error.offset else ""
        raise ValueError(f"not a Python expression{where}: {getattr(error, 'msg', None) or error}") from None
    wrong = sorted(name for name in _loaded_names(code) if not (name in ATTRIBUTES or hasattr(builtins, name)))
    if wrong:
        raise ValueError(
            f"the name {wrong[0]} is unknown: an expression may use {', '.join(ATTRIBUTES)} and Python's built-in "
            "functions; for more, write a function in a file"
        )
    return code


def _loaded_names(code: Any) -> set[str]:
    """Return the global names that the code, its comprehensions and its lambdas use, but not names of attributes."""
    import dis

    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _loaded_names(constant)
    return names


def _check_expression(text: str) -> None:
    _compile(text)


class PythonConfig(Config):
    """Configuration of the Python transform."""

    expression: str | None = key(
        "expression", default=None, validator=_check_expression, non_empty=True, importance=Importance.HIGH,
        doc="A Python expression whose result is the record's new value. It may use value, key, topic, partition, "
        "timestamp, headers and record, and Python's built-in functions.",
    )  # fmt: skip
    file: str | None = key(
        "file", default=None, non_empty=True, importance=Importance.HIGH,
        doc="A Python file with the function. Every worker needs it.",
    )  # fmt: skip
    function: str | None = key(
        "function", default=None, non_empty=True, importance=Importance.HIGH,
        doc="The name of the function in the file. Its parameters are named like the names of an expression; a "
        "function with the parameter values receives a list of values and returns a list of results.",
    )  # fmt: skip

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Any:
        """Check that either an expression or a function is configured."""
        expression, file, function = (values.get(name, "") for name in ("expression", "file", "function"))
        if expression is not None:
            if expression and (file or function):
                name = "file" if file else "function"
                yield ConfigError(name, values[name], "set either expression, or file and function")
        elif file is None and function is None:
            yield ConfigError("expression", None, "set either expression, or file and function")
        elif file is None or function is None:
            name = "file" if file is None else "function"
            yield ConfigError(name, None, "file and function must both be set")


class _Code(NamedTuple):
    """The user's code: a function of the attributes of a record, or of a list of values."""

    call: Callable[..., Any]
    parameters: tuple[str, ...]
    file: str
    name: str
    """The function's name, or the expression."""


class _Failed(NamedTuple):
    """Stands for the result of a record if the user's code raised an error for this record."""

    error: Exception


class Python(Transformation[PythonConfig]):
    """Calls an expression or function that the user has written, for each record or for lists of values."""

    required_worker_key = "python.transform.enable"
    file_keys = ("file",)

    def configure(self, config: PythonConfig) -> None:
        """Compile the expression, or import the file. Raises ConfigError."""
        self._schemas = ResultSchemas()
        if config.expression is not None:
            self._code = _expression(config.expression)
        else:
            self._code = _function(config.file or "", config.function or "")
        # The platform may call the code again only if it receives lists: another function may keep state.
        self.stateless = self._code.parameters == (_LIST,)  # type: ignore[misc]
        # Only a function or an expression with a record can return a record with another topic.
        is_expression_of_values = config.expression is not None and "record" not in self._code.parameters
        self.changes_topics = not (self.stateless or is_expression_of_values)  # type: ignore[misc]

    def apply(self, record: Any) -> ConnectRecord | None:
        """Call the code for one record. Raises DataError and RetriableError."""
        code = self._code
        if code.parameters == (_LIST,):
            (result,) = self._call_with_list([record.value])
        else:
            result = self._call(lambda name: _attribute(record, name))
        return self._record(record, result)

    def apply_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """Call the code for each record, or for the list of all values.

        Record objects are created only if the code receives or returns records.
        """
        errors: dict[int, Exception] = {}
        results = self._results(batch)
        items: list[tuple[int, Schema | None, Any]] = []
        has_records = any(isinstance(result, ConnectRecord) for result in results)
        records = batch.to_records() if has_records else []
        values = from_rows(batch.value_schema, batch.values)
        created: list[ConnectRecord] = []
        for index, result in enumerate(results):
            if result is None:
                continue
            if isinstance(result, _Failed):
                errors[index] = result.error
                continue
            try:
                if has_records:
                    created.append(self._checked(records[index], result))
                else:
                    items.append((index, *self._schemas.value(batch.value_schema, values[index], result)))
            except DataError as error:
                errors[index] = self._located(error)
        transformed = from_records(created) if has_records else _batches(batch, items)
        if errors:
            raise RecordErrors(errors, transformed)
        return transformed

    # -- calls

    def _results(self, batch: Batch) -> list[Any]:
        parameters = self._code.parameters
        if parameters == (_LIST,):
            values = from_rows(batch.value_schema, batch.values)
            try:
                return self._call_with_list(values)
            except DataError as error:
                if len(values) == 1:
                    return [_Failed(error)]
            return [self._outcome_of_one(value) for value in values]  # finds the records that fail
        columns = _columns(batch, parameters)
        results = []
        call = self._code.call
        for arguments in zip(*columns, strict=True) if columns else [()] * len(batch):
            try:
                results.append(call(*arguments))
            except Exception as error:  # noqa: BLE001 - the user's code raises what it likes
                results.append(_Failed(self._located(error)))
        return results

    def _outcome_of_one(self, value: Any) -> Any:
        try:
            return self._call_with_list([value])[0]
        except DataError as error:
            return _Failed(error)

    def _call(self, attribute: Callable[[str], Any]) -> Any:
        try:
            return self._code.call(*map(attribute, self._code.parameters))
        except Exception as error:
            raise self._located(error) from error

    def _call_with_list(self, values: list[Any]) -> list[Any]:
        try:
            results = self._code.call(list(values))
            if not isinstance(results, list | tuple) or len(results) != len(values):
                what = f"{len(results)} results" if isinstance(results, list | tuple) else type(results).__name__
                raise DataError(
                    f"the function received {len(values)} values and returned {what}: return a list with one result "
                    "for each value"
                )
            for result in results:
                if isinstance(result, ConnectRecord):
                    raise DataError(
                        "the function returned records: a function whose parameter is named `values` must return values"
                    )
        except Exception as error:
            raise self._located(error) from error
        return list(results)

    # -- results

    def _record(self, record: Any, result: Any) -> ConnectRecord | None:
        try:
            return None if result is None else self._checked(record, result)
        except DataError as error:
            raise self._located(error) from error

    def _checked(self, record: Any, result: Any) -> ConnectRecord:
        if isinstance(result, ConnectRecord):
            if type(result) is not type(record):
                raise DataError(
                    f"the result is a {type(result).__name__}, not a {type(record).__name__}: "
                    "return record.replace(...)"
                )
            return result
        schema, value = self._schemas.value(record.value_schema, record.value, result)
        changed: ConnectRecord = record.replace(value_schema=schema, value=value)
        return changed

    def _located(self, error: Exception) -> Exception:
        """Return an error that names the expression, or the file, line and function. The platform adds the alias."""
        if isinstance(error, RetriableError | _LocatedError):
            return error
        code, reason = self._code, f"{type(error).__name__}: {error}"
        if isinstance(error, DataError):
            reason = str(error)
        if code.file == _EXPRESSION_FILE:
            located = _LocatedError(f"expression {code.name}: {reason}")
        else:
            line = _line(error, code.file)
            where = f", line {line}" if line else ""
            located = _LocatedError(f"file {code.file}{where}, function {code.name}: {reason}")
        located.__cause__ = error
        return located


class _LocatedError(DataError):
    """An error with a text that names the user's expression, or the file, line and function."""


def _line(error: BaseException, file: str) -> int | None:
    """Return the line number of the innermost call in `file` in the error's traceback, or None if there is none."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _expression(text: str) -> _Code:
    names = _loaded_names(_compile(text))
    parameters = tuple(name for name in ATTRIBUTES if name in names)
    code = compile(f"lambda {', '.join(parameters)}: (\n{text}\n)", _EXPRESSION_FILE, "eval")
    return _Code(eval(code, {"__builtins__": builtins}), parameters, _EXPRESSION_FILE, text)


def _function(file: str, name: str) -> _Code:
    """Import the file as a module with a unique name, and return the function. Raises ConfigError."""
    path = str(Path(file).resolve())
    module_name = f"headrace_python_transform_{abs(hash(path))}"
    try:
        spec = importlib.util.spec_from_loader(module_name, importlib.machinery.SourceFileLoader(module_name, path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look the module up
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError("file", file, f"line {error.lineno}: {error.msg}") from error
    except OSError as error:
        raise ConfigError("file", file, f"the file cannot be read: {error.strerror or error}") from error
    except Exception as error:
        line = _line(error, path)
        where = f"line {line}: " if line else ""
        raise ConfigError("file", file, f"{where}{type(error).__name__}: {error}") from error
    call = getattr(module, name, None)
    if not callable(call):
        known = [each for each, item in vars(module).items() if inspect.isfunction(item) and not each.startswith("_")]
        raise ConfigError(
            "function", name, f"the file {file} has no function {name}; its functions: {', '.join(known)}"
        )
    return _Code(call, _parameters(call, name), path, name)


def _parameters(call: Callable[..., Any], name: str) -> tuple[str, ...]:
    found = list(inspect.signature(call).parameters.values())
    names = tuple(each.name for each in found)
    if names == (_LIST,):
        return names
    wrong = [each.name for each in found if each.name not in ATTRIBUTES or each.kind is each.KEYWORD_ONLY]
    if wrong or not names:
        what = f"the parameter {wrong[0]} is unknown" if wrong else "the function has no parameters"
        text = f"{what}: the parameters may be {', '.join(ATTRIBUTES)}, or values alone"
        raise ConfigError("function", name, text)
    return names


def _attribute(record: Any, name: str) -> Any:
    return record if name == "record" else getattr(record, name)


def _columns(batch: Batch, parameters: Sequence[str]) -> list[Sequence[Any]]:
    """Return one list per parameter. It contains, for each record, the attribute with the parameter's name."""
    count = len(batch)
    records = batch.to_records() if "record" in parameters else []
    columns: dict[str, Callable[[], Sequence[Any]]] = {
        "value": lambda: from_rows(batch.value_schema, batch.values),
        "key": lambda: [None] * count if batch.keys is None else from_rows(batch.key_schema, batch.keys),
        "topic": lambda: [batch.topic] * count,
        "partition": lambda: [batch.partition] * count,
        "timestamp": batch.timestamp_list,
        "headers": lambda: [Headers.copy_of(each) for each in batch.headers or [Headers()] * count],
        "record": lambda: records,
    }
    return [columns[name]() for name in parameters]


def _batches(batch: Batch, items: list[tuple[int, Schema | None, Any]]) -> list[Batch]:
    """Return the results as batches, with one batch for each run of results with the same schema."""
    batches = []
    for _, group in groupby(items, key=lambda item: item[1]):
        run = list(group)
        indexes, schema = [index for index, _, _ in run], run[0][1]
        part = batch if len(run) == len(batch) else batch.take(indexes)
        batches.append(part.replace(values=to_rows(schema, [value for _, _, value in run]), value_schema=schema))
    return batches
