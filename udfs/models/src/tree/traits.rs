use std::borrow::Cow;

use linfa::dataset::{AsSingleTargets, DatasetBase};
use linfa::traits::{Fit, PredictInplace};
use ndarray::{Array1, ArrayBase, ArrayView1, Data, Ix2};

use super::{RegressionTree, RegressionTreeParams, TrainingSet, TreeError, blocks};

impl TrainingSet {
    /// Checks and sorts a linfa data set. Ignores its weights.
    ///
    /// # Errors
    /// The errors of [`TrainingSet::new`].
    pub fn from_dataset<D, T>(dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<Self, TreeError>
    where
        D: Data<Elem = f64>,
        T: AsSingleTargets<Elem = f64>,
    {
        let columns: Vec<_> = dataset.records.columns().into_iter().map(contiguous).collect();
        let slices: Vec<_> = columns.iter().map(|column| &**column).collect();
        Self::new(&slices, &contiguous(dataset.targets.as_single_targets()))
    }
}

fn contiguous(column: ArrayView1<'_, f64>) -> Cow<'_, [f64]> {
    match column.to_slice() {
        Some(slice) => Cow::Borrowed(slice),
        None => Cow::Owned(column.to_vec()),
    }
}

impl<D, T> Fit<ArrayBase<D, Ix2>, T, TreeError> for RegressionTreeParams
where
    D: Data<Elem = f64>,
    T: AsSingleTargets<Elem = f64>,
{
    type Object = RegressionTree;

    fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<RegressionTree, TreeError> {
        self.fit_set(&TrainingSet::from_dataset(dataset)?)
    }
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for RegressionTree {
    /// # Panics
    /// Like linfa's models, panics if the shapes disagree: if `x` has another number of columns than the training data,
    /// or another number of rows than `y`. [`RegressionTree::predict_columns`] returns an error instead.
    fn predict_inplace(&self, x: &ArrayBase<D, Ix2>, y: &mut Array1<f64>) {
        let sums = predict_records(x, self.features(), y.len(), |block| self.add_to(block));
        y.assign(&ArrayView1::from(&sums));
    }

    fn default_target(&self, x: &ArrayBase<D, Ix2>) -> Array1<f64> {
        Array1::zeros(x.nrows())
    }
}

/// Calls [`blocks`] over an array.
pub(crate) fn predict_records<D: Data<Elem = f64>>(
    x: &ArrayBase<D, Ix2>,
    width: usize,
    rows: usize,
    visit: impl FnMut(&mut super::model::Block<'_>),
) -> Vec<f64> {
    assert_eq!(x.dim(), (rows, width), "the records must have one row a target and the model's columns");
    let mut sums = vec![0.0; rows];
    blocks(&mut sums, width, |row, feature| x[(row, feature)], visit);
    sums
}
