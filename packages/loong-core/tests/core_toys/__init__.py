"""Small models and batches that tests share."""
