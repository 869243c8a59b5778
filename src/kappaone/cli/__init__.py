"""Floor 5: commands, thin, one file a group."""
