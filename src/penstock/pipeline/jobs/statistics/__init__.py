"""`penstock pipeline stats`: counts, sizes and keys of topics, as a page or a picture.

Internal to `penstock.pipeline.jobs`.
"""
