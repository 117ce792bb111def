"""`headrace cluster`: a local cluster of several broker processes under one supervisor."""
