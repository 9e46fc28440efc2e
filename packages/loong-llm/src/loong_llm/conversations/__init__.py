"""Conversations: from files of any known form, by a chat template, to packed sequences with their trained tokens."""
