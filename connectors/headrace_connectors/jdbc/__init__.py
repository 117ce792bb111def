"""JDBC source connector: copies tables or a query of an SQL database to topics.

SQLAlchemy describes tables and quotes names; rows come from the database driver's own cursor.
"""
