"""Signs and checks internal REST requests between the workers of a group (KIP-507). This module does no I/O."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Collection, Mapping

from headrace.herder.errors import SignatureError
from headrace.stores.config_store import PutSessionKey

SIGNATURE_HEADER = "X-Connect-Authorization"
ALGORITHM_HEADER = "X-Connect-Request-Signature-Algorithm"
ALGORITHMS = {
    "HmacSHA256": "sha256", "HmacSHA1": "sha1", "HmacMD5": "md5", "HmacSHA224": "sha224", "HmacSHA384": "sha384",
    "HmacSHA512": "sha512",
}  # fmt: skip
"""The digests of the algorithms, by Java's names."""


def sign(key: PutSessionKey, algorithm: str, body: bytes) -> dict[str, str]:
    """Return the headers of a request with this body."""
    signature = base64.b64encode(_mac(key, algorithm, body)).decode()
    return {SIGNATURE_HEADER: signature, ALGORITHM_HEADER: algorithm}


def verify(headers: Mapping[str, str], body: bytes, *, key: PutSessionKey | None, algorithms: Collection[str]) -> None:
    """Check the headers of a request, whose names are lower-case. Raises SignatureError."""
    signature, algorithm = headers.get(SIGNATURE_HEADER.lower()), headers.get(ALGORITHM_HEADER.lower())
    if signature is None or algorithm is None:
        raise SignatureError(400, "Internal request missing required signature")
    if algorithm not in ALGORITHMS:
        raise SignatureError(400, f"Algorithm {algorithm} not available")
    if algorithm not in algorithms:
        raise SignatureError(
            400,
            f"This worker does not support the '{algorithm}' key signing algorithm used by other workers. This worker "
            f"is currently configured to use: [{', '.join(algorithms)}]. Check that all workers' configuration files "
            "permit the same set of signature algorithms, and correct any misconfigured worker and restart it.",
        )
    if key is None:
        raise SignatureError(
            503,
            "This worker is still starting up and has not been able to read a session key from the config topic yet",
        )
    try:
        received = base64.b64decode(signature, validate=True)
    except ValueError:  # binascii.Error is a ValueError; b64decode also raises it for characters that are not ASCII
        raise SignatureError(400, "Received internal request with a signature that is not valid Base64") from None
    if not hmac.compare_digest(received, _mac(key, algorithm, body)):
        raise SignatureError(403, "Internal request contained invalid signature.")


def _mac(key: PutSessionKey, algorithm: str, body: bytes) -> bytes:
    return hmac.digest(base64.b64decode(key.key), body, ALGORITHMS[algorithm])
