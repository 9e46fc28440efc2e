"""The training core: devices, parallelism, layers, engines, checkpoints, data, training loop, configuration."""
