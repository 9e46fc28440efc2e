"""The stacks that `tools.bench.lm` compares: each module's `build(work)` returns a function that takes one step."""
