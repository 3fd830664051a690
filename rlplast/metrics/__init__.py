"""Metrics of plasticity, as pure functions of tensors.

Values are 0-d float64 tensors, unless said otherwise. Half precision is worked on in float32.
Activations are an ordered mapping of layers to post-activation tensors, ``[batch, units]`` or
``[batch, channels, *space]``, the first hidden layer first; a channel is a unit. Weights are in
torch's layout: ``[d_out, d_in]`` or ``[C_out, C_in / groups, *kernel]``. Tensors of other shapes,
and nothing to measure, raise `ConfigError`.
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
