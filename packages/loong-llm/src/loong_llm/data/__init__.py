"""Text that ships with every Python, and a count model to measure a language model against."""
