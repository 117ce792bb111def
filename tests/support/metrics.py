"""Scrapes and parses a node's `/metrics` page."""

from __future__ import annotations

import re
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(log: str) -> Samples:
    """Fetch the metrics page at the last metrics address in the node's log. Return the samples of the page."""
    address = re.findall(r"Metrics: serving (http://\S+)", log)[-1]
    with urllib.request.urlopen(address, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = response.read().decode()
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the value of the sample with this name and exactly these labels."""
    return samples[name, tuple(sorted(labels.items()))]
