"""HTTP: the broker's own loop answers requests. Nothing is decided here, and nothing is kept here."""
