"""Loads boto3's description of the S3 API when it is imported: 0.1 s and 11 MB, which all tasks then share.

The fork server imports this module (`shared_modules`). The first client of a process loads the description otherwise.
"""

from __future__ import annotations

from headrace_connectors.s3.bucket import load_api_description

load_api_description()
