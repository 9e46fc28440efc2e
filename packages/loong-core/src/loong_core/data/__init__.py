"""Data for language models: sources, tokenising, samples, blends, and the stream a training loop reads.

Read in this order: `sources` (which files), `documents` (their text), `tokenize`, `token_store` (ids on disk),
`indexed` (Megatron's pair), `sequences` (samples), `blend`, `stream` (training), `held_out` (validation), `corpus` (all
of it for one run). Nothing before `sequences` imports torch.
"""
