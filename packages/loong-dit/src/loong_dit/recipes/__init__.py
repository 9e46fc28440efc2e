"""What the commands of `loong-dit` run: one file a task."""
