"""Modules of the JDBC sink: some convert records to rows without I/O, and the others write the rows to a database."""
