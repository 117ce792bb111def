"""Log compaction: choosing the next log, the process that cleans it, and that process's priority and I/O rate."""
