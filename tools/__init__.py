"""Checks, documentation, release and benchmark tools of the repository; no library code."""
