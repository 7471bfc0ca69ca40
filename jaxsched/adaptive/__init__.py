"""Jobs that adapt their GPUs and batches: profiles, the world, and who decides (docs/semantics.md, section 13)."""
