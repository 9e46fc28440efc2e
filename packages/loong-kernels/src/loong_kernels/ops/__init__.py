"""One folder an op: its reference, its implementations, and the public function with its documented meaning."""
