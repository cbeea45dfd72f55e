"""Who may connect, publish and subscribe: passwords, access rules, blacklist, rates.

The order of the checks: blacklist, rate, authentication, topic rewrite, authorization on the
rewritten name, mapping to a stored topic.
"""
