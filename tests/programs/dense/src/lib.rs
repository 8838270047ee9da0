//! Programs whose dense algebra a GPU does: those that mean well, and those that don't.

mod attacks;

use sandbar_guest::dense::{Device, Tensor, gpu, input, use_device};
use sandbar_guest::prelude::*;

/// Whether a task that asks for a GPU has one, and one that does not has none.
#[task]
fn who_has_one() -> Result<String, TaskError> {
    let with = names::options().gpus(1.0).submit().get()?;
    let without = names::submit().get()?;
    Ok(format!("{} / {}", with.is_some(), without.is_some()))
}

#[task]
fn names() -> Option<String> {
    gpu().map(|gpu| gpu.name)
}

/// An actor whose weights stay on the GPU.
struct Layer {
    weights: Tensor,
}

#[actor]
impl Layer {
    pub fn new(inputs: usize, outputs: usize) -> Layer {
        use_device(Device::Gpu);
        let values: Vec<f32> = (0..inputs * outputs).map(|at| (at % 7) as f32 - 3.0).collect();
        Layer { weights: Tensor::new(&[inputs, outputs], &values).expect("there is room") }
    }

    /// What it gives for some rows.
    pub fn infer(&self, rows: Vec<f32>) -> Result<Vec<f32>, String> {
        let inputs = self.weights.sizes()[0];
        let rows = Tensor::new(&[rows.len() / inputs, inputs], &rows)?;
        let out = rows.dot(&self.weights)?;
        Ok(Tensor::map(&input(0).max(0.0), &[&out])?.to_vec()?)
    }
}

/// Has actors with their weights infer, each several times, and compares.
#[task]
fn serves(actors: usize, calls: usize) -> Result<usize, TaskError> {
    const INPUTS: usize = 30;
    const OUTPUTS: usize = 20;
    let share = 1.0 / actors as f64;
    let layers: Vec<LayerHandle> = (0..actors).map(|_| Layer::options().gpus(share).submit(INPUTS, OUTPUTS)).collect();
    let rows: Vec<f32> = (0..4 * INPUTS).map(|at| (at % 5) as f32).collect();
    let weight = |row: usize, column: usize| ((row * OUTPUTS + column) % 7) as f32 - 3.0;
    let expected: Vec<f32> = (0..4 * OUTPUTS)
        .map(|at| (0..INPUTS).map(|k| rows[at / OUTPUTS * INPUTS + k] * weight(k, at % OUTPUTS)).sum::<f32>().max(0.0))
        .collect();
    let all = put(&rows);
    let asked: Vec<_> = (0..calls).flat_map(|_| layers.iter().map(|layer| layer.infer(&all))).collect();
    let found = get_all(&asked)?;
    Ok(found.iter().filter(|found| **found == expected).count())
}
