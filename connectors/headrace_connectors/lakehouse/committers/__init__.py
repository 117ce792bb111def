"""Committers, which add and remove the files of a table together with offsets: one module per table format."""
