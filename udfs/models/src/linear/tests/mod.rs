mod data;
mod edges;
mod exact;
mod model;
mod penalised;
mod reference;

use sandbar_guest::Features;

use super::{LinearError, LinearModel, LinearParams};

const ORIGIN: LinearParams = LinearParams { fit_intercept: false };

fn fit(params: LinearParams, columns: &[&[f64]], target: &[f64]) -> Result<LinearModel, LinearError> {
    let values = columns.concat();
    params.fit_features(Features::new(&values, target.len(), target.len(), columns.len()), target)
}
