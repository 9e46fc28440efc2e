"""Length histograms of real texts, and how they were measured."""
