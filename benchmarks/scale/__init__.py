"""How far one driver carries rollouts on many workers."""
