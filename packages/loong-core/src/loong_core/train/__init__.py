"""The training loop and what stands around it: schedule, guards, signals, metrics, profiles."""
