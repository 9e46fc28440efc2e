"""The `loong-llm` command. Nothing here imports torch before a command runs."""
