"""Training steps of Pi0.5 and GR00T, one module a stack; each has `build(work)`, which gives a step."""
