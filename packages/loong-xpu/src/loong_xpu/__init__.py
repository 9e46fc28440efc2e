"""Kunlun XPU: a device and its op routing, registered by entry points only."""
