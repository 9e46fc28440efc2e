"""The quickstart's data and judge: handwritten digits that move, and a classifier of real ones."""
