"""Images, videos and their conversations: from files to packed batches."""
