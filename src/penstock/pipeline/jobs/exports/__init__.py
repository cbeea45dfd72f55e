"""`penstock pipeline export`: topics to Parquet, Delta and Iceberg.

Internal to `penstock.pipeline.jobs`.
"""
