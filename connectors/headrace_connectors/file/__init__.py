"""FileStream source and sink: lines of a text file to and from topics."""
