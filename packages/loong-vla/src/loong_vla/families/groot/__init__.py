"""GR00T N1.6 and N1.7: a diffusion transformer that acts on what a vision-language model has seen."""
