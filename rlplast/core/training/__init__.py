"""What drives a run."""
