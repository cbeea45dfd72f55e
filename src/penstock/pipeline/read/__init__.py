"""Reads into Spark: sources, planning of tasks, reading in executors, stream offsets.

Internal to `penstock.pipeline`.
"""
