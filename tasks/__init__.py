"""What to make: one small module per operator, in plain PyTorch."""
