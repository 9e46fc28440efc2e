"""The engine on megatron-core: its data parallel buffers, distributed optimizer and pipeline schedules."""
