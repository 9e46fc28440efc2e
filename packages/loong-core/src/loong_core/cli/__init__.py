"""The `loong` command, and what the commands of other packages share with it."""
