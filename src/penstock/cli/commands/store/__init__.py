"""`penstock store`: the commands in `app`, what they print in `output` and `repair_output`.

Internal to `penstock.cli`.
"""
