"""`penstock mqtt`: publish, subscribe, and administer the MQTT front end of a node.

Internal to `penstock.cli`.
"""
