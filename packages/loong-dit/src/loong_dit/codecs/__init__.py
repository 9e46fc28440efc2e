"""What turns media and captions into latents and embeddings, and back."""
