"""The candidate language and its compiler. Knows torch and triton; knows no task and no model."""
