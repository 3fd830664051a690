"""What drives a run, and what is kept of it on disk."""
