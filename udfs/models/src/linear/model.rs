use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

use super::LinearError;

/// Rows per block of predictions: they stay in the cache while features are added.
const BLOCK_ROWS: usize = 1024;

/// A fitted linear model: predicts `intercept + Σ coefficients[j] · feature[j]`.
///
/// Serialised as these numbers. Deserialised numbers must be finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawModel")]
pub struct LinearModel {
    intercept: f64,
    coefficients: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    intercept: f64,
    coefficients: Vec<f64>,
}

impl LinearModel {
    pub(crate) fn new(intercept: f64, coefficients: Vec<f64>) -> Self {
        LinearModel { intercept, coefficients }
    }

    /// The prediction where all features are zero; zero without an intercept.
    pub fn intercept(&self) -> f64 {
        self.intercept
    }

    /// The effect of one unit of each feature.
    pub fn coefficients(&self) -> &[f64] {
        &self.coefficients
    }

    /// Predicts each row of `features` into `out`.
    ///
    /// # Panics
    /// Panics if `features` and the model differ in width, or `features` and `out` in length.
    pub fn predict_into(&self, features: Features<'_>, out: &mut [f64]) {
        assert_eq!(
            (features.width(), features.rows()),
            (self.coefficients.len(), out.len()),
            "width of the model, rows of the output"
        );
        let Some((first, others)) = self.coefficients.split_first() else { return out.fill(self.intercept) };
        for (block, out) in out.chunks_mut(BLOCK_ROWS).enumerate() {
            let rows = block * BLOCK_ROWS..block * BLOCK_ROWS + out.len();
            for (out, x) in out.iter_mut().zip(&features.column(0)[rows.clone()]) {
                *out = self.intercept + first * x;
            }
            for (j, coefficient) in others.iter().enumerate() {
                for (out, x) in out.iter_mut().zip(&features.column(j + 1)[rows.clone()]) {
                    *out += coefficient * x;
                }
            }
        }
    }
}

impl TryFrom<RawModel> for LinearModel {
    type Error = LinearError;

    fn try_from(raw: RawModel) -> Result<Self, LinearError> {
        let RawModel { intercept, coefficients } = raw;
        match intercept.is_finite() && coefficients.iter().all(|c| c.is_finite()) {
            true => Ok(LinearModel { intercept, coefficients }),
            false => Err(LinearError::Malformed("a coefficient or an intercept that is not finite")),
        }
    }
}
