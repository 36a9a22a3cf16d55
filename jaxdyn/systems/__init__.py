"""Dynamical systems, integrators and rollouts."""
