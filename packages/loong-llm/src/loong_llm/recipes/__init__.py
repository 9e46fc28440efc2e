"""What the commands of `loong-llm` run: one file a task, from data to batch to loss."""
