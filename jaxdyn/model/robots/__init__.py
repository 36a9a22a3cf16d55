"""The robots that come with the package, as URDF files."""
