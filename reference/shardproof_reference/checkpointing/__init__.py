"""Saving and loading of models sharded with FSDP1 and `fully_shard`."""
