"""Layouts of ranks: degrees, process groups, and starting the ranks."""
