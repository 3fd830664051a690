"""Pictures and reports of runs."""
