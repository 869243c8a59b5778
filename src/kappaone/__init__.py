"""kappaone: conditioned initialization for the attention layers of any Transformer, measured and proven."""

from kappaone._version import __version__ as __version__
