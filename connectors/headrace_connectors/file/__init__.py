"""Connectors for files: the FileStream source and sink for one text file, and the directory source for many files."""
