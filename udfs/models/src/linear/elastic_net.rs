use linfa::Dataset;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};
use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use super::moments::{Moments, MomentsOptions, Workspace};
use super::orthogonal::Factor;
use super::params::{checked_moments, not_negative, through_means};
use super::{LinearError, LinearModel};

/// Parameters of a [`LinearModel`] with a penalty on the magnitudes and squares of its coefficients.
///
/// Minimises `‖y − Xw‖² / (2 · rows) + alpha · l1_ratio · ‖w‖₁ + alpha · (1 − l1_ratio) / 2 · ‖w‖²`, the objective of
/// scikit-learn's `ElasticNet` and `Lasso` and of linfa's; the intercept is not penalised. A `Ridge` with `alpha`
/// corresponds to `alpha / rows` here.
///
/// The coordinate descent is linfa's. It receives the triangular factor of the rows instead of the rows. The factor has
/// the same solutions, and one row more than there are features, so that the cost of a step does not depend on the
/// number of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ElasticNetParams {
    /// Weight of the penalties, at least 0; 1 by default. `penalty` is an alias.
    #[serde(alias = "penalty")]
    pub alpha: f64,
    /// Share of the penalty on magnitudes, from 0 to 1; 0.5 by default. The rest is on squares.
    pub l1_ratio: f64,
    /// See [`super::LinearParams::fit_intercept`].
    pub fit_intercept: bool,
    /// Maximum number of passes over the coefficients, at least 1; 1000 by default.
    pub max_iterations: u32,
    /// Share of the target's sum of squares below which the duality gap ends the descent; 0.0001 by default.
    pub tolerance: f64,
}

impl Default for ElasticNetParams {
    fn default() -> Self {
        ElasticNetParams { alpha: 1.0, l1_ratio: 0.5, fit_intercept: true, max_iterations: 1000, tolerance: 1e-4 }
    }
}

/// A [`LinearModel`] and the outcome of its descent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ElasticNetModel {
    /// The model for predictions.
    pub linear: LinearModel,
    /// Number of passes over the coefficients.
    pub iterations: u32,
    /// Whether the duality gap fell below the tolerance.
    pub converged: bool,
}

impl ElasticNetParams {
    /// Fits the coefficients that minimise the objective.
    ///
    /// # Errors
    /// The errors of [`super::LinearParams::fit_features`], and [`LinearError::Parameter`].
    pub fn fit_features(&self, features: Features<'_>, target: &[f64]) -> Result<ElasticNetModel, LinearError> {
        self.check()?;
        let mut workspace = Workspace::new();
        let moments = checked_moments(
            features,
            target,
            MomentsOptions { centred: self.fit_intercept, target_square: true },
            &mut workspace,
        )?;
        let (coefficients, iterations, converged) = self.descend(features, target, &moments)?;
        Ok(ElasticNetModel { linear: through_means(&moments, coefficients)?, iterations, converged })
    }

    fn check(&self) -> Result<(), LinearError> {
        let wrong = |name, value: String, range| Err(LinearError::Parameter { name, value, range });
        not_negative("alpha", self.alpha)?;
        not_negative("tolerance", self.tolerance)?;
        if !(0.0..=1.0).contains(&self.l1_ratio) {
            return wrong("l1_ratio", self.l1_ratio.to_string(), "from 0 to 1");
        }
        match self.max_iterations {
            0 => wrong("max_iterations", "0".to_owned(), "at least 1"),
            _ => Ok(()),
        }
    }

    /// Returns the coefficients, the number of passes, and whether the descent converged.
    fn descend(
        &self,
        features: Features<'_>,
        target: &[f64],
        moments: &Moments<'_>,
    ) -> Result<(Vec<f64>, u32, bool), LinearError> {
        let width = features.width();
        let target_scale = moments.products(width, width).max(0.0).sqrt();
        let norms = (0..width).filter(|j| !moments.is_constant(*j)).map(|j| moments.products(j, j).sqrt());
        let (least, largest) =
            norms.fold((f64::INFINITY, 0.0), |(least, largest), norm| (norm.min(least), norm.max(largest)));
        if target_scale == 0.0 || largest == 0.0 {
            return Ok((vec![0.0; width], 0, true));
        }
        let scale = least.sqrt() * largest.sqrt();
        let factor = Factor::new(features, target, moments);
        // Scales the columns to units between the largest and the smallest column, and the target to its own: linfa
        // treats a column whose squares sum to less than 2⁻⁵² as zero.
        let records =
            Array2::from_shape_fn((width + 1, width), |(i, j)| if i <= j { factor.at(i, j) / scale } else { 0.0 });
        let residual = factor.residual.sqrt();
        let value = |i| if i < width { factor.at(i, width) } else { residual };
        let targets = Array1::from_shape_fn(width + 1, |i| value(i) / target_scale);
        // linfa's objective is a mean over its rows, of which it has `width + 1`.
        let rows = target.len() as f64 / (width as f64 + 1.0);
        let magnitudes = self.alpha * self.l1_ratio * rows / (scale * target_scale);
        let squares = self.alpha * (1.0 - self.l1_ratio) * rows / (scale * scale);
        let penalty = magnitudes + squares;
        if !penalty.is_finite() {
            return Ok((vec![0.0; width], 0, true));
        }
        let fitted = linfa_elasticnet::ElasticNet::params()
            .penalty(penalty)
            .l1_ratio(if penalty > 0.0 { magnitudes / penalty } else { 0.0 })
            .with_intercept(false)
            .max_iterations(self.max_iterations)
            .tolerance(self.tolerance)
            .fit(&Dataset::new(records, targets))?;
        let coefficients = fitted.hyperplane().iter().map(|w| w * target_scale / scale).collect();
        Ok((coefficients, fitted.n_steps(), fitted.duality_gap() <= self.tolerance))
    }
}
