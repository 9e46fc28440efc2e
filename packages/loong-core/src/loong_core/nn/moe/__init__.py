"""Mixture of experts: the router, the way to the experts and back, the experts, and the balance of their load."""
