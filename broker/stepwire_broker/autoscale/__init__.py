"""`stepwire worker autoscale`: keeps as many copies of a worker command as its backlog needs."""
