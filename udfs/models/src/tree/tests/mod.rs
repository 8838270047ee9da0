mod brute_force;
mod errors;
mod model;
mod shapes;

use super::{Draws, RegressionTree};

/// A tree as text: `feature<=threshold(left right)` for a split, the prediction for a leaf.
fn render(tree: &RegressionTree) -> String {
    let mut rendered: Vec<String> = Vec::new();
    for (index, node) in tree.nodes.iter().enumerate().rev() {
        let split = node.split;
        let text = match node.right as usize == index {
            true => format!("{split}"),
            false => {
                let (left, right) = (rendered.pop().unwrap(), rendered.pop().unwrap());
                format!("{}<={split}({left} {right})", node.feature)
            }
        };
        rendered.push(text);
    }
    rendered.pop().unwrap()
}

/// Columns and a target of small integers, so that all sums are exact and ties are frequent.
fn random_data(draws: &mut Draws, rows: usize, features: usize, values: u32) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut column = || (0..rows).map(|_| f64::from(draws.below(values))).collect();
    ((0..features).map(|_| column()).collect(), column())
}

fn slices(columns: &[Vec<f64>]) -> Vec<&[f64]> {
    columns.iter().map(|column| &**column).collect()
}
