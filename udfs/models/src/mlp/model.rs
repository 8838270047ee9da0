use sandbar_guest::Features;
use serde::{Deserialize, Serialize};

/// A trained perceptron.
///
/// A deserialised model has layers of matching sizes, and finite numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawModel")]
pub struct MlpModel {
    /// Mean and standard deviation of each feature, followed by those of the target.
    pub(super) scales: Vec<(f64, f64)>,
    pub(super) layers: Vec<Layer>,
    /// Number of passes over the rows.
    pub epochs: u32,
    /// Half the mean squared error of the last pass, relative to a target of variance 1.
    pub loss: f64,
}

/// A fully connected layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Layer {
    pub(super) inputs: u32,
    pub(super) outputs: u32,
    /// The weights of all outputs for each input.
    pub(super) weights: Vec<f32>,
    pub(super) biases: Vec<f32>,
}

#[derive(Deserialize)]
struct RawModel {
    scales: Vec<(f64, f64)>,
    layers: Vec<Layer>,
    epochs: u32,
    loss: f64,
}

impl TryFrom<RawModel> for MlpModel {
    type Error = &'static str;

    fn try_from(raw: RawModel) -> Result<MlpModel, &'static str> {
        let RawModel { scales, layers, epochs, loss } = raw;
        let is_layer = |layer: &Layer| {
            let count = u64::from(layer.inputs) * u64::from(layer.outputs);
            layer.weights.len() as u64 == count
                && layer.biases.len() == layer.outputs as usize
                && layer.weights.iter().chain(&layer.biases).all(|value| value.is_finite())
        };
        let fit = layers.windows(2).all(|pair| pair[0].outputs == pair[1].inputs);
        let ends = layers.first().is_some_and(|layer| layer.inputs as usize + 1 == scales.len())
            && layers.last().is_some_and(|layer| layer.outputs == 1);
        let are_scales = scales.iter().all(|(mean, deviation)| mean.is_finite() && deviation.is_finite());
        match layers.iter().all(is_layer) && fit && ends && are_scales {
            true => Ok(MlpModel { scales, layers, epochs, loss }),
            false => Err("not a valid model: its layers don't fit each other"),
        }
    }
}

impl MlpModel {
    /// Number of neurons of each layer, including the features and the target.
    pub fn sizes(&self) -> Vec<u32> {
        self.layers.iter().map(|layer| layer.inputs).chain([1]).collect()
    }

    /// Number of features.
    pub fn width(&self) -> usize {
        self.scales.len() - 1
    }

    /// Predicts each row of `features` into `out`.
    ///
    /// # Panics
    /// Panics if `features` and the model differ in width, or `features` and `out` in length.
    pub fn predict_into(&self, features: Features<'_>, out: &mut [f64]) {
        assert_eq!(
            (features.width(), features.rows()),
            (self.width(), out.len()),
            "width of the model, rows of the output"
        );
        let (mut values, mut next) = (Vec::new(), Vec::new());
        let [scales @ .., (mean, deviation)] = &self.scales[..] else { return };
        for (row, out) in out.iter_mut().enumerate() {
            values.clear();
            let scaled = scales.iter().enumerate();
            values.extend(scaled.map(|(j, scale)| standard(features.column(j)[row], *scale)));
            for (at, layer) in self.layers.iter().enumerate() {
                next.clear();
                next.extend_from_slice(&layer.biases);
                for (value, weights) in values.iter().zip(layer.weights.chunks_exact(layer.outputs as usize)) {
                    next.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += value * weight);
                }
                if at + 1 < self.layers.len() {
                    next.iter_mut().for_each(|value| *value = value.max(0.0));
                }
                std::mem::swap(&mut values, &mut next);
            }
            *out = mean + deviation * f64::from(values[0]);
        }
    }
}

/// Standardises a value.
pub(super) fn standard(value: f64, (mean, deviation): (f64, f64)) -> f32 {
    ((value - mean) / deviation) as f32
}
