"""A node: all parts of a store, started and stopped together, and the ways to open one."""
