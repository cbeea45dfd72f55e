"""`penstock cluster`: show and change a cluster.

    replicas   replicas of shards, elections, quarantine
    recovery   a new cluster from the directory of one survivor
    up         a cluster of several processes on this machine

`app` has the other commands, and registers these.

Internal to `penstock.cli`.
"""
