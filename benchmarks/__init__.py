"""Side-by-side measurements of jaxdyn and its peers: `python -m benchmarks --help`, and README.md."""
