//! A perceptron with its weights on the host, for repeated predictions.

use sandbar_guest::Features;
use sandbar_guest::dense::{DenseError, Tensor, input};

use super::MlpModel;
use super::model::standard;

/// A trained perceptron with its weights on the host, or on the GPU if one runs the operations.
#[derive(Debug)]
pub struct LoadedMlp {
    scales: Vec<(f64, f64)>,
    /// Weights and biases of each layer.
    layers: Vec<(Tensor, Tensor)>,
}

impl MlpModel {
    /// Copies the weights to the host.
    ///
    /// # Errors
    /// Reports exhausted memory.
    pub fn load(&self) -> Result<LoadedMlp, DenseError> {
        let layers = self.layers.iter().map(|layer| {
            let [inputs, outputs] = [layer.inputs as usize, layer.outputs as usize];
            Ok((Tensor::new(&[inputs, outputs], &layer.weights)?, Tensor::new(&[outputs], &layer.biases)?))
        });
        Ok(LoadedMlp { scales: self.scales.clone(), layers: layers.collect::<Result<_, DenseError>>()? })
    }
}

impl LoadedMlp {
    /// Number of features.
    pub fn width(&self) -> usize {
        self.scales.len() - 1
    }

    /// Predicts all rows of `features` at once.
    ///
    /// # Errors
    /// Reports features of another width than the model, and errors of the host.
    pub fn predict(&self, features: Features<'_>) -> Result<Vec<f64>, DenseError> {
        let [scales @ .., (mean, deviation)] = &self.scales[..] else { return Ok(Vec::new()) };
        let mut values = standardise(features, scales)?;
        for (at, (weights, biases)) in self.layers.iter().enumerate() {
            values = apply_layer(&values, weights, biases, at + 1 == self.layers.len())?;
        }
        let values = values.to_vec::<f32>()?;
        Ok(values.into_iter().map(|value| mean + deviation * f64::from(value)).collect())
    }
}

/// Standardises the features, row by row. A tensor of another width than the model has is rejected by the first layer's
/// product.
pub(super) fn standardise(features: Features<'_>, scales: &[(f64, f64)]) -> Result<Tensor, DenseError> {
    let (rows, width) = (features.rows(), features.width());
    let mut values = vec![0.0_f32; rows * width];
    for (j, scale) in scales.iter().enumerate().take(width) {
        for (row, value) in features.column(j).iter().enumerate() {
            values[row * width + j] = standard(*value, *scale);
        }
    }
    Tensor::new(&[rows, width], &values)
}

/// Applies a layer to rows. The last layer has no activation.
pub(super) fn apply_layer(
    rows: &Tensor,
    weights: &Tensor,
    biases: &Tensor,
    is_last: bool,
) -> Result<Tensor, DenseError> {
    let biased = input(0) + input(1);
    let active = if is_last { biased } else { biased.max(0.0) };
    Tensor::map(&active, &[&rows.dot(weights)?, biases])
}
