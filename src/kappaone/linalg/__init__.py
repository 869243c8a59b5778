"""Floor 0: semi-orthogonal sampling, spectra of small matrices, a pool with the same bits for any thread count."""
