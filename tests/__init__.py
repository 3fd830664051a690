"""A package of its own: some libraries install one called tests, which comes first otherwise."""
