"""The FSDP plugin: its settings, and how a model is sharded by them."""
