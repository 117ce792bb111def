"""FileStream connectors.

The source copies the lines of a text file to a topic. The sink appends records to a text file.
"""
