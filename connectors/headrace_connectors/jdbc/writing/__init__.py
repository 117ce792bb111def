"""The writing part of the JDBC sink: modules without I/O convert records to rows, and databases write the rows."""
