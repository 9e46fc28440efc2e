"""Families of robot policies."""
