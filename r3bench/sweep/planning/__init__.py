"""What a grid costs and can see, before anything is spent."""
