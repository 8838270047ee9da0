use std::borrow::Cow;

use linfa::dataset::{AsSingleTargets, DatasetBase};
use linfa::traits::{Fit, PredictInplace};
use ndarray::{Array1, ArrayBase, Data, Ix2};
use sandbar_guest::Features;

use super::{ElasticNetModel, ElasticNetParams, LinearError, LinearModel, LinearParams, RidgeParams};

macro_rules! linfa_traits {
    ($($params:ty => $model:ty;)*) => {$(
        impl<D, T> Fit<ArrayBase<D, Ix2>, T, LinearError> for $params
        where
            D: Data<Elem = f64>,
            T: AsSingleTargets<Elem = f64>,
        {
            type Object = $model;

            fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<$model, LinearError> {
                fit_dataset(dataset, |features, target| self.fit_features(features, target))
            }
        }
    )*};
}

linfa_traits! {
    LinearParams => LinearModel;
    RidgeParams => LinearModel;
    ElasticNetParams => ElasticNetModel;
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for LinearModel {
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

/// Fits the columns of a linfa data set. Ignores its weights.
pub(crate) fn fit_dataset<D, T, M>(
    dataset: &DatasetBase<ArrayBase<D, Ix2>, T>,
    fit: impl FnOnce(Features<'_>, &[f64]) -> M,
) -> M
where
    D: Data<Elem = f64>,
    T: AsSingleTargets<Elem = f64>,
{
    let columns = columns(&dataset.records);
    let (rows, width) = dataset.records.dim();
    let target = dataset.targets.as_single_targets();
    let target = target.to_slice().map_or_else(|| Cow::Owned(target.to_vec()), Cow::Borrowed);
    fit(Features::new(&columns, rows, rows, width), &target)
}

/// Predicts the rows of an array.
pub(crate) fn predict_records<D: Data<Elem = f64>>(
    x: &ArrayBase<D, Ix2>,
    y: &mut Array1<f64>,
    predict: impl FnOnce(Features<'_>, &mut [f64]),
) {
    let columns = columns(x);
    let features = Features::new(&columns, x.nrows(), x.nrows(), x.ncols());
    let mut out = vec![0.0; y.len()];
    predict(features, &mut out);
    y.assign(&Array1::from(out));
}

/// The columns of an array, one after another.
fn columns<D: Data<Elem = f64>>(records: &ArrayBase<D, Ix2>) -> Cow<'_, [f64]> {
    match records.t().to_slice() {
        Some(columns) => Cow::Borrowed(columns),
        None => Cow::Owned(records.t().iter().copied().collect()),
    }
}
