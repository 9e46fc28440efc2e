"""Training steps of Pi0.5, one module a stack; each has `build(work)`, which gives a step."""
