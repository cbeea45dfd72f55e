"""Options of Spark's reader, writer and tables: names, types, defaults, pushed filters.

Internal to `penstock.pipeline`.
"""
