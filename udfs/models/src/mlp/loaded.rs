//! A perceptron whose weights the host has, for who predicts again and again.

use sandbar_guest::Features;
use sandbar_guest::dense::{DenseError, Tensor, input};

use super::MlpModel;
use super::model::standard;

/// A trained perceptron whose weights are the host's: on the GPU, where one does the work.
#[derive(Debug)]
pub struct LoadedMlp {
    scales: Vec<(f64, f64)>,
    /// Weights and biases of each layer.
    layers: Vec<(Tensor, Tensor)>,
}

impl MlpModel {
    /// Hands its weights to the host.
    ///
    /// # Errors
    /// When there is no room for them.
    pub fn load(&self) -> Result<LoadedMlp, DenseError> {
        let layers = self.layers.iter().map(|layer| {
            let [inputs, outputs] = [layer.inputs as usize, layer.outputs as usize];
            Ok((Tensor::new(&[inputs, outputs], &layer.weights)?, Tensor::new(&[outputs], &layer.biases)?))
        });
        Ok(LoadedMlp { scales: self.scales.clone(), layers: layers.collect::<Result<_, DenseError>>()? })
    }
}

impl LoadedMlp {
    /// How many features it takes.
    pub fn width(&self) -> usize {
        self.scales.len() - 1
    }

    /// Predicts each row of `features`, all of them at once.
    ///
    /// # Errors
    /// [`DenseError`]: when the features have another width than the model, and the host's.
    pub fn predict(&self, features: Features<'_>) -> Result<Vec<f64>, DenseError> {
        let [scales @ .., (mean, deviation)] = &self.scales[..] else { return Ok(Vec::new()) };
        let mut values = standardised(features, scales)?;
        for (at, (weights, biases)) in self.layers.iter().enumerate() {
            values = activated(&values, weights, biases, at + 1 == self.layers.len())?;
        }
        let values = values.to_vec::<f32>()?;
        Ok(values.into_iter().map(|value| mean + deviation * f64::from(value)).collect())
    }
}

/// Features in units of their columns' deviations, row by row; of others than there are scales for, too many or too few.
pub(super) fn standardised(features: Features<'_>, scales: &[(f64, f64)]) -> Result<Tensor, DenseError> {
    let (rows, width) = (features.rows(), features.width());
    let mut values = vec![0.0_f32; rows * width];
    for (j, of) in scales.iter().enumerate().take(width) {
        for (row, value) in features.column(j).iter().enumerate() {
            values[row * width + j] = standard(*value, *of);
        }
    }
    Tensor::new(&[rows, width], &values)
}

/// What a layer makes of rows; the last does not hold back what is below zero.
pub(super) fn activated(rows: &Tensor, weights: &Tensor, biases: &Tensor, is_last: bool) -> Result<Tensor, DenseError> {
    let biased = input(0) + input(1);
    let active = if is_last { biased } else { biased.max(0.0) };
    Tensor::map(&active, &[&rows.dot(weights)?, biases])
}
