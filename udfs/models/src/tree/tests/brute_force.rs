//! Every node of trees grown on small random data, compared with all possible splits.

use super::{random_data, slices};
use crate::tree::grow::Grower;
use crate::tree::{Draws, RegressionTree, RegressionTreeParams, Splitter, TrainingSet};

/// A data set, the count of each row, the parameters and the tree grown from them.
struct GrownTree {
    columns: Vec<Vec<f64>>,
    target: Vec<f64>,
    counts: Vec<u32>,
    params: RegressionTreeParams,
    tree: RegressionTree,
}

impl GrownTree {
    fn new(seed: u64, splitter: Splitter) -> Self {
        let mut draws = Draws::stream(seed, 0);
        let (rows, features) = (1 + draws.below(24) as usize, 1 + draws.below(4) as usize);
        let values = 2 + draws.below(9);
        let (columns, target) = random_data(&mut draws, rows, features, values);
        let mut counts: Vec<u32> = (0..rows).map(|_| draws.below(4)).collect();
        counts[0] = counts[0].max(1);
        let params = RegressionTreeParams {
            splitter,
            min_samples_leaf: 1 + draws.below(3),
            min_samples_split: 2 + draws.below(4),
            max_depth: Some(2 + draws.below(9)),
            ..Default::default()
        };
        let set = TrainingSet::new(&slices(&columns), &target).unwrap();
        let tree = Grower::new(&set, params.limits(&set).unwrap()).grow(&counts, &mut draws);
        Self { columns, target, counts, params, tree }
    }

    /// scikit-learn's proxy of a split of `rows`; none if the split is not allowed.
    fn gain(&self, rows: &[usize], feature: usize, threshold: f64) -> Option<f64> {
        let (left, right): (Vec<_>, Vec<_>) = rows.iter().partition(|&&row| self.columns[feature][row] <= threshold);
        let fewest = left.len().min(right.len());
        let proxy = |rows: &[usize]| self.sum(rows).powi(2) / self.weight(rows);
        (fewest >= self.params.min_samples_leaf as usize).then(|| proxy(&left) + proxy(&right))
    }

    fn best_gain(&self, rows: &[usize]) -> Option<f64> {
        let splits = (0..self.columns.len()).flat_map(|feature| rows.iter().map(move |&row| (feature, row)));
        splits.filter_map(|(feature, row)| self.gain(rows, feature, self.columns[feature][row])).max_by(f64::total_cmp)
    }

    fn sum(&self, rows: &[usize]) -> f64 {
        rows.iter().map(|&row| f64::from(self.counts[row]) * self.target[row]).sum()
    }

    fn weight(&self, rows: &[usize]) -> f64 {
        rows.iter().map(|&row| f64::from(self.counts[row])).sum()
    }

    fn check(&self) {
        let rows = (0..self.target.len()).filter(|&row| self.counts[row] > 0).collect();
        let mut open: Vec<(usize, u32, Vec<usize>)> = vec![(0, 0, rows)];
        while let Some((index, depth, rows)) = open.pop() {
            let node = self.tree.nodes[index];
            let split_possible = rows.len() >= self.params.min_samples_split as usize
                && rows.iter().any(|&row| self.target[row] != self.target[rows[0]])
                && depth < self.params.max_depth.unwrap();
            if node.right as usize == index {
                assert_eq!(node.split, self.sum(&rows) / self.weight(&rows));
                let best = self.best_gain(&rows).filter(|_| split_possible && self.params.splitter == Splitter::Best);
                assert_eq!(best, None, "{rows:?} could be split");
                continue;
            }
            assert!(split_possible);
            let feature = node.feature as usize;
            let gain = self.gain(&rows, feature, node.split).expect("a split that may be made");
            let (left, right): (Vec<_>, Vec<_>) =
                rows.iter().partition(|&&row| self.columns[feature][row] <= node.split);
            if self.params.splitter == Splitter::Best {
                let best = self.best_gain(&rows).unwrap();
                assert!(gain >= best - 1e-9 * best.abs(), "{rows:?}: gain {gain} where {best} is possible");
                let value = |row: &usize| self.columns[feature][*row];
                let low = left.iter().map(value).fold(f64::MIN, f64::max);
                let high = right.iter().map(value).fold(f64::MAX, f64::min);
                assert_eq!(node.split, (low + high) / 2.0);
            }
            open.push((index + 1, depth + 1, left));
            open.push((node.right as usize, depth + 1, right));
        }
    }
}

#[test]
fn no_split_is_better() {
    // SEED=n runs that seed only.
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..2000).collect(),
    };
    for seed in seeds {
        for splitter in [Splitter::Best, Splitter::Random] {
            let run = || GrownTree::new(seed, splitter).check();
            assert!(std::panic::catch_unwind(run).is_ok(), "failed with SEED={seed} and {splitter:?}");
        }
    }
}
