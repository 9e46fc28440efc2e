"""What the commands of `loong-vlm` run: one file a task, from data to batch to loss."""
