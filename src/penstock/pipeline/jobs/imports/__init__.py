"""`penstock pipeline import`: files and Kafka topics into a store."""
