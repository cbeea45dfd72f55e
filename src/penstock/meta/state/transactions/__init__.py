"""The state machine of transactions."""
