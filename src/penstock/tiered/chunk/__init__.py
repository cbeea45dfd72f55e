"""Chunks and manifests: what a tier's objects hold."""
