"""Whole runs as a library: train, resume, branch, load, evaluate; what their folders say."""
