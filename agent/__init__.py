"""The loop: strategy, replies, providers, budget and the command line."""
