"""The segmented file log: one CommitLog, a ConsumeQueue per shard, IndexFiles.

Its files are byte-compatible with Apache RocketMQ 5.5. `engine` implements the contract, `store`
joins the parts.
"""
