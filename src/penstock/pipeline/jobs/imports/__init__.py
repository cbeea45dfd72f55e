"""`penstock pipeline import`: files and Kafka topics into a store.

Internal to `penstock.pipeline.jobs`.
"""
