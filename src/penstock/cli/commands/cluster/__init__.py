"""`penstock cluster`: show and change a cluster.

app        status, members, drain, transfer; the other commands are registered here
replicas   replicas of shards, elections, quarantine
recovery   a new cluster from the directory of one survivor
up         a cluster of several processes on this machine
"""
