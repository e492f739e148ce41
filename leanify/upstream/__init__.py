"""timm and transformers: everything that knows how they build, spell, initialise and feed their models."""
