"""Pi0 and Pi0.5: a PaliGemma that sees and reads, and an expert beside it that acts."""
