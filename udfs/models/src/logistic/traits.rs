use linfa::dataset::{AsSingleTargets, DatasetBase};
use linfa::traits::{Fit, PredictInplace};
use ndarray::{Array1, ArrayBase, Data, Ix2};

use super::{LogisticError, LogisticModel, LogisticParams};
use crate::linear::{fit_dataset, predict_records};

impl<D, T> Fit<ArrayBase<D, Ix2>, T, LogisticError> for LogisticParams
where
    D: Data<Elem = f64>,
    T: AsSingleTargets<Elem = f64>,
{
    type Object = LogisticModel;

    fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<LogisticModel, LogisticError> {
        fit_dataset(dataset, |features, target| self.fit_features(features, target))
    }
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for LogisticModel {
    /// # Panics
    /// Like linfa's models, panics if the shapes disagree: if `x` has another number of columns than the training data,
    /// or another number of rows than `y`.
    fn predict_inplace(&self, x: &ArrayBase<D, Ix2>, y: &mut Array1<f64>) {
        predict_records(x, y, |features, out| self.predict_into(features, out));
    }

    fn default_target(&self, x: &ArrayBase<D, Ix2>) -> Array1<f64> {
        Array1::zeros(x.nrows())
    }
}
