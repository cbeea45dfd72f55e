"""`penstock pipeline`: the jobs on Spark."""
