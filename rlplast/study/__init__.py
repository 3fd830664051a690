"""Studies: one prefix and many arms, planned, run by an executor, resumed."""
