"""The server side: the gRPC service over a store, its threads and bounds, the parts of a node."""
