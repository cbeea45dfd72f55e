"""Transactions: who takes part, how they end, and what readers of committed records may see."""
