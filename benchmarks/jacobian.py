"""kappa(J) of one attention head: through its structure, against automatic differentiation and an SVD.

    python benchmarks/jacobian.py [--full] [--threads N]

Both sizes in one run: a small one, where the automatic Jacobian with all its singular values is quick enough to repeat,
and ViT-B/32 (50 tokens, width 768, head dimension 64), where it is run only with --full: it holds a 3,200 x 147,456
matrix (3.8 GB), and its SVD takes minutes to an hour.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kappaone.conditioning import AttentionJacobian, condition_number


def automatic(X: Tensor, weights: list[Tensor]) -> float:
    """Materialize J by reverse-mode differentiation; all singular values."""
    scale = weights[0].shape[0] ** -0.5

    def attention(W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
        return torch.softmax(scale * (X @ W_Q.T) @ (X @ W_K.T).T, dim=1) @ (X @ W_V.T)

    parts = torch.func.jacrev(attention, argnums=(0, 1, 2))(*weights)
    J = torch.cat([part.flatten(0, 1).flatten(1) for part in parts], dim=1)
    values = torch.linalg.svdvals(J)
    return float(values[0] / values[-1])


def best(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the automatic Jacobian at ViT-B/32 size too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"threads {options.threads}, torch {torch.__version__}")
    print(f"{'size':<26}{'method':<12}{'seconds':>9}{'kappa(J)':>16}{'est. error':>12}")
    for name, N, D, d, repeats in (("small", 20, 96, 32, 2), ("ViT-B/32 head", 50, 768, 64, 2)):
        generator = torch.Generator().manual_seed(0)
        X = torch.nn.functional.layer_norm(torch.randn(N, D, dtype=torch.float64, generator=generator), (D,))
        weights = [0.02 * torch.randn(d, D, dtype=torch.float64, generator=generator) for _ in range(3)]
        seconds, found = best(lambda X=X, w=weights: condition_number(AttentionJacobian.from_weights(X, *w)), repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kB on Linux
        label = f"{name} ({N * d} rows)"
        kappa = f"{found.condition_number:.9g}"
        print(f"{label:<26}{found.method:<12}{seconds:>9.2f}{kappa:>16}{found.relative_error:>12.1e}")
        print(f"{'':<26}peak memory of the process so far {peak:.2f} GB")
        if name == "small" or options.full:
            slow, reference = best(lambda X=X, w=weights: automatic(X, w), 1)
            print(f"{'':<26}{'jacrev+svd':<12}{slow:>9.2f}{reference:>16.9g}")
            print(
                f"{'':<26}ratio {slow / seconds:.1f}, relative difference {found.condition_number / reference - 1:.1e}"
            )
        else:
            print(f"{'':<26}jacrev+svd not run at this size (--full runs it)")


if __name__ == "__main__":
    main()
