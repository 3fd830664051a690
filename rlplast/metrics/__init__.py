"""Metrics of plasticity, as pure functions of tensors.

- `rlplast.metrics.ranks`: ranks of a matrix, of weights and features alike.
- `rlplast.metrics.weights`: norms, distances and deviation from isometry of weights.
- `rlplast.metrics.features`: activations and gradients.
- `rlplast.metrics.balance`: how the weights of successive layers relate.
- `rlplast.metrics.paths`: the path through a network along which its layers can stretch most.
- `rlplast.metrics.curvature`: eigenvalues of a loss's Hessian.
- `rlplast.metrics.density`: how activations and eigenvalues are distributed.
- `rlplast.metrics.sketch`: where the weights are, in a few numbers.
- `rlplast.metrics.outputs`: outputs as a function of weights and inputs.
- `rlplast.metrics.new_targets`: how well a network still fits new targets.
- `rlplast.metrics.diagnosis`: whether a network has lost plasticity, in words.
- `rlplast.metrics.readiness`: how strong and how reliable a loss's gradient is.
- `rlplast.metrics.units`: units that sleep, units that learn nothing.
- `rlplast.metrics.calibration`: accuracy and calibration of classifiers.
"""

from rlplast.metrics.balance import balancedness, lipschitz_bound, pairwise_balance
from rlplast.metrics.calibration import accuracy, ece, mca
from rlplast.metrics.curvature import (
    hessian_max_eigenvalue,
    hessian_spectral_norm,
    hessian_spectrum,
)
from rlplast.metrics.density import Density, activation_histogram, hessian_density
from rlplast.metrics.diagnosis import Fit, NetworkDiagnosis, Sign, diagnose_network
from rlplast.metrics.features import (
    active_fraction,
    dormant_ratio,
    dormant_ratio_per_layer,
    effective_lr,
    feature_covariance_distance,
    feature_norm,
    gradient_norm,
    last_features,
    saturation,
    saturation_percentile,
)
from rlplast.metrics.new_targets import Trainability, trainability
from rlplast.metrics.outputs import (
    churn,
    churn_argmax,
    churn_size,
    gradient_covariance,
    lipschitz_estimate,
    ntk_effective_rank,
    ntk_srank,
)
from rlplast.metrics.paths import LongestPath, longest_path
from rlplast.metrics.ranks import (
    effective_rank,
    singular_values,
    spectral_norm,
    spectral_summary,
    srank,
    stable_rank,
)
from rlplast.metrics.readiness import optimization_readiness
from rlplast.metrics.sketch import weight_sketch
from rlplast.metrics.units import awake_fraction, gradient_score, grama_share, unit_age
from rlplast.metrics.weights import (
    Measurement,
    dfi,
    dfi_scaled,
    fire_scale,
    matrix_slices,
    measure,
    sfe,
    sfe_normalized,
    weight_difference,
    weight_norm,
)

__all__ = [
    "Density",
    "Fit",
    "LongestPath",
    "Measurement",
    "NetworkDiagnosis",
    "Sign",
    "Trainability",
    "accuracy",
    "activation_histogram",
    "active_fraction",
    "awake_fraction",
    "balancedness",
    "churn",
    "churn_argmax",
    "churn_size",
    "dfi",
    "dfi_scaled",
    "diagnose_network",
    "dormant_ratio",
    "dormant_ratio_per_layer",
    "ece",
    "effective_lr",
    "effective_rank",
    "feature_covariance_distance",
    "feature_norm",
    "fire_scale",
    "gradient_covariance",
    "gradient_norm",
    "gradient_score",
    "grama_share",
    "hessian_density",
    "hessian_max_eigenvalue",
    "hessian_spectral_norm",
    "hessian_spectrum",
    "last_features",
    "lipschitz_bound",
    "lipschitz_estimate",
    "longest_path",
    "matrix_slices",
    "mca",
    "measure",
    "ntk_effective_rank",
    "ntk_srank",
    "optimization_readiness",
    "pairwise_balance",
    "saturation",
    "saturation_percentile",
    "sfe",
    "sfe_normalized",
    "singular_values",
    "spectral_norm",
    "spectral_summary",
    "srank",
    "stable_rank",
    "trainability",
    "unit_age",
    "weight_difference",
    "weight_norm",
    "weight_sketch",
]
