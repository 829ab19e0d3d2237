"""Rollouts on many machines: workers in Ray actors that play episodes for one learner."""
