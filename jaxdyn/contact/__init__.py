"""Forces between a robot and the ground."""
