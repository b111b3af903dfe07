"""vLLM servers that live no longer than what uses them."""
