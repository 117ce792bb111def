"""The conformance suites for connectors: base classes for a connector's test classes.

    from headrace.testing.conformance import SinkConformance

    class TestLinesSink(SinkConformance):
        plugin = LinesSink

        def config(self) -> dict[str, str]:
            return {"path": str(self.directory / "lines.txt")}

        def stored(self) -> list[str]:
            path = self.directory / "lines.txt"
            return path.read_text().splitlines() if path.exists() else []

pytest then runs every case with a new `directory`. The cases are situations that occur in Kafka Connect: open and
close, restart from an offset, lost acknowledgements, a record that cannot be stored, pause and resume, a rebalance, a
stop within the timeout, validation without the external system, and names that external systems may not expect.
"""

from headrace.testing.conformance.self_reading_sinks import SelfReadingSinkConformance
from headrace.testing.conformance.sinks import SinkConformance
from headrace.testing.conformance.sources import SourceConformance

__all__ = ["SelfReadingSinkConformance", "SinkConformance", "SourceConformance"]
