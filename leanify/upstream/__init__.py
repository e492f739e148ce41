"""timm and transformers: how they build, name, initialise and feed their models."""
