"""Robot policies: families, data, recipes and the `loong-vla` command."""
