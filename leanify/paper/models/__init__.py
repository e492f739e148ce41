"""The paper's models that neither timm nor transformers has, implemented from the papers' descriptions."""
