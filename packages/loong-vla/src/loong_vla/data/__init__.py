"""Robots' recordings: LeRobot datasets, their pictures and statistics, and the stream of samples."""
