"""What a layer is: where upstream keeps its heads, which sizes its tensors have, and how they are resized."""
