"""Loads boto3's description of the S3 API when this module is imported.

Loading takes 0.1 s, and the description needs 11 MB of memory. The fork server imports this module (see
`shared_modules`), so that all tasks share the description. Otherwise, the first client in each process loads it.
"""

from __future__ import annotations

from headrace_connectors.s3.bucket import load_api_description

load_api_description()
