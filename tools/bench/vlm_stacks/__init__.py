"""Stacks that train vision-language models, each in a module that builds its step on the same work."""
