"""Evening out the work of data ranks, whose samples differ in text and images."""
