"""Programs that the executor `exec` starts, and a record of each, so that a later process can end what is left."""
