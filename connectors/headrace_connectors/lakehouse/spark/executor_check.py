"""Checks before the first batch that the executors can run the driver's functions.

Python functions are sent to executors by pickling them. So both sides must have the same minor version of Python, and
the same version of headrace.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version

from headrace_connectors.lakehouse.spark.jobs import ExecutorsUnsuitableError, JobFailedError, SparkJobs

_REMEDY = (
    "make a package with `headrace lakehouse package` and set lakehouse.executors.package to it, or install"
    " headrace[lakehouse] {version} for Python {python} on the executors and set spark.pyspark.python to its Python"
)
_VERSIONS = re.compile(r"Python in worker has different version: ([\d.]+)|worker_version[^\d]*([\d.]+)")


def check_versions(jobs: SparkJobs) -> None:
    """Run one small job, and compare the executors' versions with the driver's. Raises ExecutorsUnsuitableError."""
    try:
        found = json.loads(jobs.run(describe_executor, 1, "check the executors")[0])
    except JobFailedError as error:
        problem = _problem(error)
        if problem is None:
            raise
        raise _error(problem) from error
    if found["headrace"] != version("headrace"):
        raise _error(f"the executors have headrace {found['headrace']}, and this worker has {version('headrace')}")
    if found["python"] != _python_version():
        raise _error(f"the executors run Python {found['python']}, and this worker runs Python {_python_version()}")


def describe_executor(task: int) -> bytes:
    """Return the versions of this process's Python and headrace, as JSON. Runs on an executor."""
    import pyarrow

    return json.dumps(
        {
            "python": _python_version(),
            "headrace": version("headrace"),
            "pyarrow": pyarrow.__version__,
            "executable": sys.executable,
        }
    ).encode()


def _problem(error: JobFailedError) -> str | None:
    """Return what is wrong with the executors, or None if the job failed for another reason."""
    text = str(error)
    if error.error_class == "ModuleNotFoundError":
        return f"the executors' Python cannot import a module that the connector needs: {text}"
    if "PYTHON_VERSION_MISMATCH" in text or "different version" in text:
        found = _VERSIONS.search(text)
        other = f" {found[1] or found[2]}" if found is not None else ""
        return f"the executors run another version of Python{other}, and this worker runs Python {_python_version()}"
    if "Cannot run program" in text or "No such file or directory" in text:
        return f"the executors cannot start Python: {text}"
    return None


def _error(problem: str) -> ExecutorsUnsuitableError:
    remedy = _REMEDY.format(version=version("headrace"), python=_python_version())
    return ExecutorsUnsuitableError(f"{problem}; {remedy}")


def _python_version() -> str:
    return "{}.{}".format(*sys.version_info[:2])
