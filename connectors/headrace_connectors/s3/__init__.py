"""S3 connectors: the sink writes records to objects in a bucket, and the source reads objects into topics."""
