"""Rotations, rigid motions and spatial algebra."""
