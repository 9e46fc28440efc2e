"""What the commands of `loong-vla` run: one file a task."""
