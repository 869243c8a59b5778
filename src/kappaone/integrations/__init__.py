"""Floor 5: kappaone inside other people's programs, one file each."""
