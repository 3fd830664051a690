"""What may be edited, and the one writer."""
