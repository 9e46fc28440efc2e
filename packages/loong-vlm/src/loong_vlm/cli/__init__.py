"""The `loong-vlm` command. Nothing here imports torch before a command runs."""
