"""Animation pages and plots."""
