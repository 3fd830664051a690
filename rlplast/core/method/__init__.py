"""What a method is, and when it acts."""
