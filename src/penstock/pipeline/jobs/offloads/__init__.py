"""`penstock pipeline offload`: uploads to the tier by Spark's executors.

Internal to `penstock.pipeline.jobs`.
"""
