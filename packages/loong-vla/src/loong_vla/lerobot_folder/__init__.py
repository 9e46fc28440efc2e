"""lerobot's `pretrained_model/` folder: weights, configuration, and the processors with their statistics."""
