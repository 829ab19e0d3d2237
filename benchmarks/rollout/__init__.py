"""What a rollout costs: against the bare engine, and beside a slow coach and slow tools."""
