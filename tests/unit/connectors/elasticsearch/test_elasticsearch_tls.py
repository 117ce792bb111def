"""Tests of the TLS context of the Elasticsearch sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig
from headrace_connectors.elasticsearch.tls import tls_context
from support.certificates import PASSWORD, create_certificates


@pytest.mark.parametrize("kind", ["PEM", "PKCS#12"])
def test_only_certificates_of_the_trust_store_are_trusted(tmp_path: Path, kind: str) -> None:
    """A comment in a PEM file may contain any characters, as in bundles of certificate authorities."""
    certificates = create_certificates(tmp_path)
    pem = tmp_path / "comment.pem"
    pem.write_text("# F\u0151tan\u00fas\u00edtv\u00e1ny\n" + certificates.authority.read_text(), encoding="utf-8")
    settings = {
        "connection.url": "https://localhost:9200",
        "elastic.https.ssl.truststore.location": str(pem if kind == "PEM" else certificates.trust_store),
        "elastic.https.ssl.truststore.password": PASSWORD,
    }
    (found,) = tls_context(ElasticsearchSinkConfig.parse(settings)).get_ca_certs()
    assert found["subject"] == ((("commonName", "authority"),),)


@pytest.mark.parametrize("kind", ["PEM", "PKCS#12"])
def test_certificates_of_the_configuration_are_trusted_together_with_the_trust_store(tmp_path: Path, kind: str) -> None:
    certificates = create_certificates(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    store = certificates.authority if kind == "PEM" else certificates.trust_store
    settings = {
        "connection.url": "https://localhost:9200",
        "elastic.https.ssl.truststore.location": str(store),
        "elastic.https.ssl.truststore.password": PASSWORD,
        "elastic.https.ssl.truststore.certificates": create_certificates(other).authority.read_text(),
    }
    assert len(tls_context(ElasticsearchSinkConfig.parse(settings)).get_ca_certs()) == 2
