"""FileStream source and sink connectors: copy lines of a text file to a topic, and records of topics to a text file."""
