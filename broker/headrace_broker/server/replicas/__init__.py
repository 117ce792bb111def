"""The partitions of a broker: led, followed and fetched, and the fetch sessions of who reads them."""
