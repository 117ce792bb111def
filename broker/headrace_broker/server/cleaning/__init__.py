"""Log compaction: selects the next log to clean, runs the cleaner process, and limits its CPU use and I/O."""
