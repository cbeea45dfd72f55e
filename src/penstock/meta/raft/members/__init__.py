"""The members of a cluster: how it begins, who may join, who is alive, how it is recovered.

Internal to `penstock.meta`.
"""
