//! Programs that use dense algebra on a GPU, honest and hostile ones.

mod attacks;

use sandbar_guest::dense::{Device, Tensor, gpu, input, use_device};
use sandbar_guest::prelude::*;

/// Returns whether a task that requests a GPU has one, and a task that does not has none.
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

    /// Returns the layer's output for some rows.
    pub fn infer(&self, rows: Vec<f32>) -> Result<Vec<f32>, String> {
        let inputs = self.weights.sizes()[0];
        let rows = Tensor::new(&[rows.len() / inputs, inputs], &rows)?;
        let out = rows.dot(&self.weights)?;
        Ok(Tensor::map(&input(0).max(0.0), &[&out])?.to_vec()?)
    }
}

/// Calls each of several actors repeatedly, and counts the right answers.
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
    let pending: Vec<_> = (0..calls).flat_map(|_| layers.iter().map(|layer| layer.infer(&all))).collect();
    let found = get_all(&pending)?;
    Ok(found.iter().filter(|found| **found == expected).count())
}

/// Doubles and halves a value on the GPU in `turns` operations. Logs before each.
#[task]
fn doubled(turns: usize, number: usize) -> Result<f32, String> {
    use_device(Device::Gpu);
    let mut value = Tensor::new(&[1], &[1.0_f32])?;
    for turn in 0..turns {
        value = Tensor::map(&(if turn % 2 == 0 { input(0) * 2.0 } else { input(0) / 2.0 }), &[&value])?;
        if turn % 4 == 0 {
            value.to_vec::<f32>()?;
        }
        if turn % 200 == 5 {
            // Equal lines would be merged in the log.
            sandbar_guest::log::info!("at work: {number}, turn {turn}");
        }
    }
    Ok(value.to_vec()?[0])
}

/// Runs such tasks beside an actor with weights while GPU processes are killed. Returns how many are right.
#[task]
fn survives(tasks: usize, turns: usize) -> Result<usize, TaskError> {
    let layer = Layer::options().gpus(0.5).max_restarts(100).max_task_retries(100).submit(3, 1);
    let calls: Vec<_> = (0..tasks).map(|_| layer.infer(vec![1.0, 1.0, 1.0])).collect();
    let all: Vec<_> =
        (0..tasks).map(|number| doubled::options().gpus(0.5).max_retries(100).submit(turns, number)).collect();
    let right = get_all(&all)?.into_iter().filter(|value| *value == if turns.is_multiple_of(2) { 1.0 } else { 2.0 });
    let right = right.count();
    // The weights -3, -2 and -1 map ones to -6, which ReLU makes 0, and minus ones to 6.
    let inferred = get_all(&calls)?.into_iter().filter(|out| *out == [0.0]).count();
    let again = layer.infer(vec![-1.0, -1.0, -1.0]).get()?;
    Ok(right + inferred + usize::from(again == [6.0]))
}
