"""Who may connect, publish and subscribe: passwords, access rules, blacklist, rates.

The order of the checks: blacklist, rate, authentication, topic rewrite, authorization on the
rewritten name, mapping to a stored topic.
"""

from penstock.brokers.mqtt.policy.passwords import (
    check_user_name,
    hash_password,
    parse_password_file,
    with_user,
)

__all__ = ["check_user_name", "hash_password", "parse_password_file", "with_user"]
