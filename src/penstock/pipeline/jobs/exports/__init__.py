"""`penstock pipeline export`: topics to Parquet, Delta and Iceberg."""
