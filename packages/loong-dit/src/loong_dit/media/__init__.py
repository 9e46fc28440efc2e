"""Pictures and videos: read, fitted to sizes, and written."""
