"""Floor 4: what to train. Models, data, presets, and the comparison of arms on them."""

from kappaone.recipes.compare import compare as compare
from kappaone.recipes.compare import comparison_folder as comparison_folder
from kappaone.recipes.compare import pairing_problems as pairing_problems
from kappaone.recipes.compare import plan_comparison as plan_comparison
from kappaone.recipes.data import ImageData as ImageData
from kappaone.recipes.data import find_images as find_images
from kappaone.recipes.data import load_images as load_images
from kappaone.recipes.recipe import Recipe as Recipe
from kappaone.recipes.recipe import StudyDefaults as StudyDefaults
from kappaone.recipes.recipe import get_recipe as get_recipe
from kappaone.recipes.recipe import options_from_dict as options_from_dict
from kappaone.recipes.recipe import options_to_dict as options_to_dict
from kappaone.recipes.recipe import parse_assignments as parse_assignments
from kappaone.recipes.recipe import recipe_names as recipe_names
from kappaone.recipes.recipe import register_recipe as register_recipe
from kappaone.recipes.training import BatchOrder as BatchOrder
from kappaone.recipes.training import TrainingOptions as TrainingOptions
from kappaone.recipes.training import TrainingOutcome as TrainingOutcome
from kappaone.recipes.training import train as train
