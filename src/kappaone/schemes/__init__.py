"""Floor 1: initialization schemes, one file each, and the way they are written. Nothing here imports torch."""

from kappaone.schemes.registry import ENTRIES as ENTRIES
from kappaone.schemes.registry import InitSpec as InitSpec
from kappaone.schemes.registry import home as home
from kappaone.schemes.registry import lookup as lookup
from kappaone.schemes.registry import names as names
from kappaone.schemes.registry import understand as understand
