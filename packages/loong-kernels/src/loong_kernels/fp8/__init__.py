"""Products in 8 bits: formats with scales, and layers whose three products are made in them."""
