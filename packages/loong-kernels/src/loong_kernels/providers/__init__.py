"""Implementations that other libraries bring, behind the same ops; each is served only where it is named."""
