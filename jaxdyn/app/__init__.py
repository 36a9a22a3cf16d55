"""The commands of `jaxdyn`: each module has `configure(parser)` and `run(arguments)`."""
