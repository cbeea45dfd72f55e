"""The parts of the suite, one for each subject of the contract.

Internal to `penstock.testing.conformance`.
"""
