"""Language models: families, text data, pretraining, and the loong-llm command."""
