"""JDBC source: tables and queries of SQL databases as topics, through SQLAlchemy's dialects and the drivers' own
cursors.
"""
