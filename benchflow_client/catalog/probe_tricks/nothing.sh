# Does nothing: what the task gives for no work at all.
