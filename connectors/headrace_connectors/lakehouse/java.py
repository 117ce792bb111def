"""The former name of `headrace_connectors.lakehouse.spark.java`."""

from headrace_connectors.lakehouse.spark.java import Java as Java
from headrace_connectors.lakehouse.spark.java import JavaNotFoundError as JavaNotFoundError
from headrace_connectors.lakehouse.spark.java import find_java as find_java
from headrace_connectors.lakehouse.spark.java import major_version as major_version
