"""Reports the bad records of a micro-batch to the platform, which counts, logs and dead-letters them.

The result of a Spark task has at most FAILED_RECORDS_MAX bad records of a range, and their number. If a range has more,
and bad records are logged or dead-lettered, the driver reads the range again in slices, so that its memory does not
grow with the number of bad records. Otherwise their number is sufficient.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from headrace.api.record_access import RecordPipeline
from headrace.api.task import SelfReadingErrantRecordReporter
from headrace_connectors.lakehouse.bad_records import describe
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.job.range_summary import RangeSummary
from headrace_connectors.lakehouse.job.results import BadRecord, RangeResult
from headrace_connectors.lakehouse.job.work import BatchWork, RangeLoader

logger = logging.getLogger(__name__)


class BadRecordReports:
    """Applies `errors.*` to the bad records of micro-batches.

    `make_pipeline` returns the pipeline of the records, but one that returns all failed records and not only the first.
    """

    def __init__(self, reporter: SelfReadingErrantRecordReporter, make_pipeline: Callable[[], RecordPipeline]) -> None:
        self._reporter = reporter
        self._make_pipeline = make_pipeline
        self.skipped = 0

    @property
    def tolerates_errors(self) -> bool:
        """Whether errors.tolerance is `all`."""
        return self._reporter.tolerates_errors

    def report(
        self, results: Sequence[RangeResult], work: BatchWork, targets: Callable[[], dict[str, TableTarget]]
    ) -> None:
        """Report all bad records of the ranges. Returns when the dead letter queue has acknowledged them."""
        bad = [result for result in results if result.bad_count]
        if not bad:
            return
        for result in bad:
            if result.bad_count == len(result.bad):
                self._report(result.bad)
            elif not self._reporter.needs_records:
                self._reporter.count(result.bad_count)
            else:
                self._report_slices(result, work, targets())
        count = sum(result.bad_count for result in bad)
        self.skipped += count
        first = next(each for result in bad for each in result.bad)
        logger.warning(
            "Skipped %d bad records (total since the task started: %d). First bad record: %s",
            count,
            self.skipped,
            describe(first),
        )

    def _report(self, bad: Sequence[BadRecord]) -> None:
        self._reporter.report([each.failure for each in bad])

    def _report_slices(self, result: RangeResult, work: BatchWork, targets: dict[str, TableTarget]) -> None:
        summary = RangeSummary(result.range, bad_max=sys.maxsize)
        with work.source.reader.open() as reader, self._make_pipeline().open() as pipeline:
            loader = RangeLoader(work.rules, targets, pipeline, None, work.topic_ids)
            for _ in loader.steps(reader, result.range, summary):
                bad = summary.take_bad()
                if bad:
                    self._report(bad)
