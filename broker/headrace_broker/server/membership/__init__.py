"""Who is in the cluster: a broker's life as the controller sees it, who is gone, and what clients are told."""
