"""The HTTP port: metrics, health, liveness and readiness."""
