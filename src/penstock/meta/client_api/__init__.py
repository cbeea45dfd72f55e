"""What callers may ask of the meta service, alike for standalone, Raft and remote clients."""
