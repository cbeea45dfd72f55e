"""`penstock tier`: the commands in `app`, what they print in `output`.

Internal to `penstock.cli`.
"""
