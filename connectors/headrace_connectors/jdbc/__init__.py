"""JDBC source connector, which copies SQL tables, or the result of an SQL query, to topics.

SQLAlchemy reads table definitions and quotes identifiers. The connector fetches rows with the
database driver's cursor.
"""
