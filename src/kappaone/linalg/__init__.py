"""Floor 0: semi-orthogonal sampling, spectra of small matrices, a pool that gives the same bits for any thread count."""

from kappaone.linalg.spectra import Spectrum as Spectrum
from kappaone.linalg.spectra import singular_values as singular_values
from kappaone.linalg.spectra import spectrum as spectrum
from kappaone.linalg.stiefel import semi_orthogonal as semi_orthogonal
from kappaone.linalg.workers import ordered as ordered
