"""Which architectures of timm and transformers are handled: the whole of both libraries, counted and confirmed."""
