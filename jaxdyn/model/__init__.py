"""The robot: its tree, its joints, its parameters, its configuration space and its files."""
