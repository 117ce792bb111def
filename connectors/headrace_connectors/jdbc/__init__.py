"""JDBC connectors. The source copies SQL tables or query results to topics. The sink writes records to SQL tables.

SQLAlchemy reads table definitions and quotes identifiers. The connectors read and write rows with the
database driver's cursor.
"""
