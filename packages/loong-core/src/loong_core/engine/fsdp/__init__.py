"""The engine on torch: fully sharded data parallel (FSDP2), plain or with copies (HSDP)."""
