"""The controller: placement of leaders, failover, decommissioning."""
