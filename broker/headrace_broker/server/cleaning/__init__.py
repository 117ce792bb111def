"""Compaction at work: which log is next, the process that cleans it, and how much of the machine that may take."""
