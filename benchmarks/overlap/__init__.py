"""Whether a slow coach slows a rollout down."""
