"""What a step of the turn engine itself costs, without sandbox and coach."""
