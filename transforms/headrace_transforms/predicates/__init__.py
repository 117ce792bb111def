"""Predicates: which records a transform applies to."""
