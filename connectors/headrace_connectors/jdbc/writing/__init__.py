"""How the JDBC sink writes: records become rows of tables (pure), and databases receive the rows."""
