"""Modules of the JDBC sink: some convert records to rows, and the others write the rows to a database."""
