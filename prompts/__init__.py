"""What a model is told: templates and a strict renderer."""
