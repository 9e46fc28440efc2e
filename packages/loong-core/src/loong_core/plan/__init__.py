"""Planning a run before it is paid for: memory and step time of each layout of ranks, from arithmetic alone.

`memory` follows our own code tensor by tensor; `step_time` adds up what a step does at the rates in `rates.json`,
measured on a device; `search` tries the layouts of a number of accelerators. Nothing here imports torch.
"""
