"""Flow matching: timesteps, noise, loss."""
