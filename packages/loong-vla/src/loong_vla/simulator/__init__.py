"""Worlds in which policies are tried."""
