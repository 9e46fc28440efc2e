"""Families of vision-language models: a Hugging Face folder to parts and back; by the group `loong.vision_families`."""
