"""Predicates, which select the records that a transform applies to."""
