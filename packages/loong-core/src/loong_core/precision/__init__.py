"""In which precision the products of a built model are made: chosen by name pattern, held for a step, and guarded."""
