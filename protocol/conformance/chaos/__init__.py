"""Random courses of a session, steered by its state: the source of ops for lockstep and for the hostile broker."""
