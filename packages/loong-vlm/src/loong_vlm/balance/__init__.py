"""Balancing a global batch over data ranks: what a sample costs, who takes it, and how costs are measured.

The line of training samples is the same on every rank, and so is what is known of each sample before it is read: its
tokens and its images' patches. Every rank therefore works out the whole plan by itself and reads only its own share.
Nothing is exchanged, so nothing can wait for a rank that has no image.
"""
