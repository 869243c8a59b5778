"""Floor 3: initializations that need a model, a batch, a teacher or a measurement."""
