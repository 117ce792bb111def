"""Tests of the signatures of internal REST requests (KIP-507)."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest

from headrace.herder.errors import SignatureError
from headrace.herder.request_signature import ALGORITHMS, sign, verify
from headrace.stores.config_store import PutSessionKey

JEFE = PutSessionKey(base64.b64encode(b"Jefe").decode(), "HmacSHA256", 0)
BODY = b"what do ya want for nothing?"
# RFC 2202 and RFC 4231, test case 2
MACS = {
    "HmacMD5": "750c783e6ab0b503eaa86e310a5db738",
    "HmacSHA1": "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
    "HmacSHA224": "a30e01098bc6dbbf45690f3a7e9e6d0f8bbea2a39e6148008fd05e44",
    "HmacSHA256": "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    "HmacSHA384": ("af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649"),
    "HmacSHA512": (
        "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fd"
        "caeab1a34d4a6b4b636e070a38bce737"
    ),
}


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def status_of(
    headers: Mapping[str, str], body: bytes = BODY, *, key: PutSessionKey | None = JEFE, algorithm: str = "HmacSHA256"
) -> tuple[int, str]:
    with pytest.raises(SignatureError) as raised:
        verify(headers, body, key=key, algorithms=[algorithm])
    return raised.value.status, str(raised.value)


SIGNED = lower(sign(JEFE, "HmacSHA256", BODY))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_request_signature_is_the_base64_encoded_mac_of_the_body(algorithm: str) -> None:
    headers = sign(JEFE, algorithm, BODY)
    assert headers == {
        "X-Connect-Authorization": base64.b64encode(bytes.fromhex(MACS[algorithm])).decode(),
        "X-Connect-Request-Signature-Algorithm": algorithm,
    }
    verify(lower(headers), BODY, key=JEFE, algorithms=list(ALGORITHMS))


def test_request_without_a_body_is_signed_with_the_mac_of_an_empty_body() -> None:
    headers = lower(sign(JEFE, "HmacSHA256", b""))
    verify(headers, b"", key=JEFE, algorithms=["HmacSHA256"])
    assert status_of(headers, b" ") == (403, "Internal request contained invalid signature.")


@pytest.mark.parametrize("name", list(SIGNED))
def test_internal_request_without_a_signature_header_is_rejected(name: str) -> None:
    headers = {other: value for other, value in SIGNED.items() if other != name}
    status, message = status_of(headers)
    assert status == 400
    assert "missing required signature" in message


def test_signature_with_an_algorithm_that_the_worker_does_not_permit_is_rejected() -> None:
    status, message = status_of(SIGNED, algorithm="HmacSHA512")
    assert status == 400
    assert "does not support the 'HmacSHA256' key signing algorithm" in message
    assert "configured to use: [HmacSHA512]." in message


def test_signature_with_an_unknown_algorithm_is_rejected_with_error_algorithm_not_available() -> None:
    headers = {**SIGNED, "x-connect-request-signature-algorithm": "Foo"}
    assert status_of(headers) == (400, "Algorithm Foo not available")


def test_worker_without_a_session_key_rejects_internal_requests_with_status_503() -> None:
    status, message = status_of(SIGNED, key=None)
    assert status == 503
    assert "has not been able to read a session key" in message


@pytest.mark.parametrize("signature", ["?", "abc", "ä", "\u2028", "AAA=A"])
def test_internal_request_with_a_signature_that_is_not_base64_is_rejected(signature: str) -> None:
    status, message = status_of({**SIGNED, "x-connect-authorization": signature})
    assert status == 400
    assert "not valid Base64" in message


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        (SIGNED, BODY + b" ", JEFE),
        (SIGNED, BODY, PutSessionKey("AAAA", "HmacSHA256", 0)),
        ({**SIGNED, "x-connect-authorization": ""}, BODY, JEFE),
        ({**SIGNED, "x-connect-authorization": SIGNED["x-connect-authorization"][:40]}, BODY, JEFE),
        (lower(sign(JEFE, "HmacSHA512", BODY)) | {"x-connect-request-signature-algorithm": "HmacSHA256"}, BODY, JEFE),
    ],
    ids=["other body", "other key", "empty", "truncated", "other algorithm"],
)
def test_internal_request_with_a_wrong_signature_is_rejected_with_status_403(
    headers: Mapping[str, str], body: bytes, key: PutSessionKey
) -> None:
    assert status_of(headers, body, key=key) == (403, "Internal request contained invalid signature.")


def test_repr_of_a_session_key_does_not_contain_the_key() -> None:
    assert JEFE.key not in repr(JEFE)
