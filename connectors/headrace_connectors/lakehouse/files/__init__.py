"""Parquet files of a table, as the executors write them, and the file systems that contain them."""
