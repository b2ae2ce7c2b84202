"""Modalities' classes for saving and loading sharded training."""
