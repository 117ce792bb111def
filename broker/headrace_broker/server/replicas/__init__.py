"""The partitions that a broker leads or follows, the fetchers of followers, and the fetch sessions."""
