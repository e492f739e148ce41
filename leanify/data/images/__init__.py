"""Images: folders, tables, tar shards, the built-in digits."""
