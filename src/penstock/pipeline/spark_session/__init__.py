"""Spark sessions: Java, the master, Python workers, what executors need.

Internal to `penstock.pipeline`.
"""
