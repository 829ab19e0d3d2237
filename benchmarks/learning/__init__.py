"""What the trainer learns: one module a question."""
