"""Start after a stop or a crash: checkpoints, checks of the log's tail, rebuilds.

Internal to `penstock.engine.segment`.
"""
