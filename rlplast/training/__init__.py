"""What drives a run, and what lasts of it."""
