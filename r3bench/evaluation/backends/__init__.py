"""What samples: transformers, vLLM, a server, each behind `sampling`."""
