//! Training: the forward pass, the backward pass and Adam, as host operations per batch of rows.
//!
//! Sources: Kingma and Ba, *Adam: A Method for Stochastic Optimization* (2015), algorithm 1 with the step of its
//! section 2; initial weights by Glorot and Bengio, *Understanding the difficulty of training deep feedforward neural
//! networks* (2010).

use sandbar_guest::Features;
use sandbar_guest::dense::{DenseError, Dtype, Expression, Tensor, input};
use sandbar_guest::random::Xoshiro256PlusPlus;
use sandbar_guest::random::rand_core::RngCore;

use super::loaded::{apply_layer, standardise};
use super::model::{Layer, standard};
use super::{MlpError, MlpModel, MlpParams};
use crate::linear::{LinearError, why_not_finite};

/// Adam's decay rates of the two moments, and the term that prevents a division by zero.
const FIRST: f64 = 0.9;
const SECOND: f64 = 0.999;
const EPSILON: f64 = 1e-8;

impl MlpParams {
    /// Trains a perceptron from random initial weights, on rows in random order.
    ///
    /// # Errors
    /// [`MlpError`].
    pub fn fit_features(
        &self,
        features: Features<'_>,
        target: &[f64],
        random: Xoshiro256PlusPlus,
    ) -> Result<MlpModel, MlpError> {
        self.check()?;
        if target.is_empty() {
            return Err(LinearError::NoRows.into());
        }
        let columns = (0..features.width()).map(|j| features.column(j)).chain([target]);
        if columns.into_iter().any(|column| column.iter().any(|value| !value.is_finite())) {
            return Err(why_not_finite(features, target).into());
        }
        Training::new(self, features, target, random)?.run()
    }
}

/// A perceptron in training and its rows, all in tensors of the host.
struct Training<'a> {
    params: &'a MlpParams,
    scales: Vec<(f64, f64)>,
    features: Tensor,
    target: Tensor,
    rows: usize,
    weights: Vec<Adam>,
    biases: Vec<Adam>,
    random: Xoshiro256PlusPlus,
    steps: u32,
}

/// Parameters in training, and the moments of their gradients.
struct Adam {
    values: Tensor,
    first: Tensor,
    second: Tensor,
}

impl Adam {
    fn new(sizes: &[usize], values: &[f32]) -> Result<Adam, DenseError> {
        let zeros = || Tensor::zeros(Dtype::F32, sizes);
        Ok(Adam { values: Tensor::new(sizes, values)?, first: zeros()?, second: zeros()? })
    }

    /// Takes a step of this size against a gradient.
    fn step(&mut self, gradient: &Tensor, size: f64) -> Result<(), DenseError> {
        let first = input(0) * FIRST + input(1) * (1.0 - FIRST);
        self.first = Tensor::map(&first, &[&self.first, gradient])?;
        let second = input(0) * SECOND + input(1) * input(1) * (1.0 - SECOND);
        self.second = Tensor::map(&second, &[&self.second, gradient])?;
        let next = input(0) - input(1) / (input(2).sqrt() + EPSILON) * size;
        self.values = Tensor::map(&next, &[&self.values, &self.first, &self.second])?;
        Ok(())
    }
}

impl<'a> Training<'a> {
    fn new(
        params: &'a MlpParams,
        features: Features<'_>,
        target: &[f64],
        mut random: Xoshiro256PlusPlus,
    ) -> Result<Training<'a>, MlpError> {
        let (rows, width) = (target.len(), features.width());
        let mut scales: Vec<(f64, f64)> = (0..width).map(|j| scale(features.column(j))).collect();
        let values = standardise(features, &scales)?;
        let of_target = scale(target);
        scales.push(of_target);
        let targets: Vec<f32> = target.iter().map(|value| standard(*value, of_target)).collect();
        let sizes = params.hidden_layer_sizes.iter().map(|size| *size as usize);
        let sizes: Vec<usize> = [width].into_iter().chain(sizes).chain([1]).collect();
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for pair in sizes.windows(2) {
            let bound = (6.0 / (pair[0] + pair[1]) as f64).sqrt();
            let mut drawn = |count: usize| -> Vec<f32> {
                (0..count).map(|_| (bound * (2.0 * unit(&mut random) - 1.0)) as f32).collect()
            };
            weights.push(Adam::new(pair, &drawn(pair[0] * pair[1]))?);
            biases.push(Adam::new(&pair[1..], &drawn(pair[1]))?);
        }
        Ok(Training {
            params,
            scales,
            features: values,
            target: Tensor::new(&[rows, 1], &targets)?,
            rows,
            weights,
            biases,
            random,
            steps: 0,
        })
    }

    /// Trains until the loss no longer decreases.
    fn run(mut self) -> Result<MlpModel, MlpError> {
        let mut order: Vec<u32> = (0..self.rows as u32).collect();
        let (mut best, mut since) = (f64::INFINITY, 0);
        let (mut epochs, mut loss) = (0, f64::NAN);
        while epochs < self.params.max_epochs && since <= self.params.patience {
            epochs += 1;
            for last in (1..order.len()).rev() {
                order.swap(last, (self.random.next_u64() % (last as u64 + 1)) as usize);
            }
            loss = self.epoch(&order)?;
            if !loss.is_finite() {
                return Err(MlpError::Diverged(epochs));
            }
            since = if loss > best - self.params.tolerance { since + 1 } else { 0 };
            best = best.min(loss);
        }
        let layers = self.weights.iter().zip(&self.biases).map(|(weights, biases)| {
            let [inputs, outputs] = [0, 1].map(|at| weights.values.sizes()[at] as u32);
            Ok(Layer { inputs, outputs, weights: weights.values.to_vec()?, biases: biases.values.to_vec()? })
        });
        let layers = layers.collect::<Result<_, DenseError>>()?;
        Ok(MlpModel { scales: self.scales, layers, epochs, loss })
    }

    /// Passes over the rows in this order. Returns the loss, which is read once, at the end of the pass.
    fn epoch(&mut self, order: &[u32]) -> Result<f64, DenseError> {
        let mut sum = Tensor::zeros(Dtype::F32, &[1])?;
        for batch in order.chunks(self.params.batch_size as usize) {
            let places = Tensor::new(&[batch.len()], batch)?;
            let squares = self.step(&self.features.take(&places)?, &self.target.take(&places)?)?;
            sum = Tensor::map(&(input(0) + input(1)), &[&sum, &squares])?;
        }
        Ok(f64::from(sum.to_vec::<f32>()?[0]) / (2.0 * self.rows as f64))
    }

    /// Takes a step with some rows. Returns the sum of squared errors before the step.
    fn step(&mut self, features: &Tensor, target: &Tensor) -> Result<Tensor, DenseError> {
        let rows = target.len() as f64;
        let last = self.weights.len() - 1;
        let mut outputs: Vec<Tensor> = Vec::with_capacity(last + 1);
        for (at, (weights, biases)) in self.weights.iter().zip(&self.biases).enumerate() {
            let before = outputs.last().unwrap_or(features);
            outputs.push(apply_layer(before, &weights.values, &biases.values, at == last)?);
        }
        let errors = Tensor::map(&(input(0) - input(1)), &[&outputs[last], target])?;
        let squares = Tensor::map(&(input(0) * input(0)), &[&errors])?.sum(0)?;
        let mut slopes = Tensor::map(&(input(0) * (1.0 / rows)), &[&errors])?;
        self.steps += 1;
        let [first, second] = [FIRST, SECOND].map(|decay| 1.0 - decay.powi(self.steps as i32));
        let size = self.params.learning_rate * second.sqrt() / first;
        for at in (0..=last).rev() {
            let weights = &self.weights[at].values;
            let before = if at == 0 { features } else { &outputs[at - 1] };
            let penalty = input(0) + input(1) * (self.params.alpha / rows);
            let gradient = Tensor::map(&penalty, &[&before.transposed_dot(&slopes)?, weights])?;
            let of_biases = slopes.sum(0)?;
            if at > 0 {
                // An inactive neuron passes no gradient on.
                let passed = input(0) * Expression::from(0.0).less(input(1));
                slopes = Tensor::map(&passed, &[&slopes.dot_transposed(weights)?, before])?;
            }
            self.weights[at].step(&gradient, size)?;
            self.biases[at].step(&of_biases, size)?;
        }
        Ok(squares)
    }
}

/// Mean and standard deviation; a constant column has 1 instead.
fn scale(column: &[f64]) -> (f64, f64) {
    let mean = column.iter().sum::<f64>() / column.len() as f64;
    let variance = column.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / column.len() as f64;
    let deviation = variance.sqrt();
    (mean, if deviation > 0.0 && deviation.is_finite() { deviation } else { 1.0 })
}

/// Draws from [0, 1).
fn unit(random: &mut Xoshiro256PlusPlus) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
