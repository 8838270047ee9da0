//! A parameter server: one actor keeps the weights of a model, others keep the rows and compute gradients. The model is
//! a logistic regression, trained by gradient descent.
//!
//! `host submit examples/parameter-server --arg workers=4 --arg steps=200`
//!
//! The server saves its weights after each step. With `--arg restart=true` it is killed half-way and restarts from its
//! last checkpoint, without any effect on the workers.

use sandbar_guest::prelude::*;
use sandbar_guest::random::{self, rand_core::RngCore};

/// Weights that generate the rows; the last one is the intercept.
const TRUE_WEIGHTS: [f64; 5] = [2.0, -1.0, 0.5, 0.0, 0.25];
const RATE: f64 = 1.0;
/// Maximum number of steps in flight.
const STEPS_AHEAD: u32 = 10;

/// The weights.
struct Server {
    weights: Vec<f64>,
}

#[actor]
impl Server {
    pub fn new() -> Server {
        Server { weights: vec![0.0; TRUE_WEIGHTS.len()] }
    }

    pub fn weights(&self) -> Vec<f64> {
        self.weights.clone()
    }

    /// Takes a step against the mean of these gradients.
    pub fn step(&mut self, gradients: Vec<ObjectRef<Vec<f64>>>) -> Result<Vec<f64>, TaskError> {
        let gradients = get_all(&gradients)?;
        for gradient in &gradients {
            for (weight, slope) in self.weights.iter_mut().zip(gradient) {
                *weight -= RATE / gradients.len() as f64 * slope;
            }
        }
        Ok(self.weights())
    }

    pub fn checkpoint(&self) -> Vec<f64> {
        self.weights()
    }

    pub fn restore(weights: Vec<f64>) -> Server {
        Server { weights }
    }
}

/// A part of the rows: features and a label.
struct Worker {
    rows: Vec<([f64; TRUE_WEIGHTS.len()], bool)>,
    batch: usize,
    next: usize,
}

/// The probability of a positive label.
fn likely(row: &[f64], weights: &[f64]) -> f64 {
    let sum: f64 = row.iter().zip(weights).map(|(value, weight)| value * weight).sum();
    1.0 / (1.0 + (-sum).exp())
}

#[actor]
impl Worker {
    /// Generates rows from a seed.
    pub fn new(seed: u64, rows: usize, batch: usize) -> Worker {
        let mut random = random::seeded(seed);
        let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut row = || {
            let mut row = [1.0; TRUE_WEIGHTS.len()];
            row[..TRUE_WEIGHTS.len() - 1].fill_with(|| 6.0 * unit() - 3.0);
            (row, unit() < likely(&row, &TRUE_WEIGHTS))
        };
        Worker { rows: (0..rows).map(|_| row()).collect(), batch: batch.clamp(1, rows.max(1)), next: 0 }
    }

    /// The gradient of the error over the next batch of rows.
    pub fn gradient(&mut self, weights: Vec<f64>) -> Vec<f64> {
        let mut gradient = vec![0.0; weights.len()];
        for _ in 0..self.batch {
            let (row, is_so) = &self.rows[self.next];
            let error = likely(row, &weights) - f64::from(u8::from(*is_so));
            gradient.iter_mut().zip(row).for_each(|(slope, value)| *slope += error * value / self.batch as f64);
            self.next = (self.next + 1) % self.rows.len();
        }
        gradient
    }

    /// The number of rows that these weights classify correctly.
    pub fn right(&self, weights: Vec<f64>) -> usize {
        self.rows.iter().filter(|(row, is_so)| (likely(row, &weights) > 0.5) == *is_so).count()
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct TrainingResult {
    weights: Vec<f64>,
    accuracy: f64,
}

#[task]
fn main(
    workers: Option<u64>,
    steps: Option<u32>,
    rows: Option<usize>,
    restart: Option<bool>,
) -> Result<TrainingResult, TaskError> {
    let (steps, rows) = (steps.unwrap_or(200), rows.unwrap_or(2000).max(1));
    let server = Server::options().max_restarts(3).max_task_retries(3).submit();
    let workers: Vec<_> = (0..workers.unwrap_or(2).max(1)).map(|seed| Worker::submit(seed, rows, 100)).collect();
    let mut weights = server.weights();
    for step in 1..=steps {
        let gradients: Vec<_> = workers.iter().map(|worker| worker.gradient(&weights)).collect();
        weights = server.step(gradients);
        if step % STEPS_AHEAD == 0 || step == steps / 2 {
            sandbar_guest::log::info!("after {step} steps: {:.3?}", weights.get()?);
        }
        if step == steps / 2 && restart == Some(true) {
            server.restart();
        }
    }
    let right: Vec<_> = workers.iter().map(|worker| worker.right(&weights)).collect();
    let right: usize = get_all(&right)?.iter().sum();
    Ok(TrainingResult { weights: server.weights().get()?, accuracy: right as f64 / (workers.len() * rows) as f64 })
}

#[cfg(test)]
mod tests {
    use sandbar_guest::testing;

    use super::*;

    #[test]
    fn weights_converge_after_a_server_restart() {
        let run = |restart: bool| {
            testing::run::<TrainingResult>("main", &format!(r#"{{"steps": 100, "rows": 1000, "restart": {restart}}}"#))
                .unwrap()
        };
        let trained = run(false);
        assert!(trained.accuracy > 0.85, "{trained:?}");
        assert!(
            trained.weights.iter().zip(TRUE_WEIGHTS).all(|(is, expected)| (is - expected).abs() < 0.4),
            "{trained:?}"
        );
        assert_eq!(run(true), trained);
    }
}
