"""Kinematics and dynamics of a tree of rigid bodies."""
