"""One generation batch from sampling to the loss."""
