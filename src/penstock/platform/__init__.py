"""The machine as the store sees it: disk, clock, log, metrics, addresses, gRPC and RocksDB.

Everything above reaches files, time and the network through these modules, so that tests can put
a simulated disk or clock in their place.
"""
