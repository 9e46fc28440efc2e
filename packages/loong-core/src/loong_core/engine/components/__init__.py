"""Models of several components, each with a layout of its own over the same ranks: encoders that feed a decoder."""
