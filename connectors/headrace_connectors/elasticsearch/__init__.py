"""Elasticsearch connector: a sink that writes records as documents to Elasticsearch or OpenSearch."""
