"""S3 connectors: a sink that writes records to objects of a bucket, exactly once if the layout is deterministic."""
