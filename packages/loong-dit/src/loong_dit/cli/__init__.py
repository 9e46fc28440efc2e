"""The `loong-dit` command. Nothing here imports torch before a command runs."""
