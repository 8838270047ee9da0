//! The registered functions: a trainer for each kind of model.

#[cfg(test)]
mod tests;

use sandbar_guest::Groups;
use sandbar_guest::prelude::*;

use crate::forest::{RandomForest, RandomForestParams};
use crate::linear::{ElasticNetModel, ElasticNetParams, LinearError, LinearModel, LinearParams, RidgeParams};
use crate::logistic::{LogisticError, LogisticModel, LogisticParams};
use crate::mlp::{MlpError, MlpModel, MlpParams};
use crate::tree::{RegressionTree, RegressionTreeParams, TreeError};

/// Ordinary least squares.
#[trainer(together = linear_together)]
fn linear(group: &Group<'_>, params: &LinearParams) -> Result<LinearModel, LinearError> {
    params.fit_features(group.features(), group.target())
}

fn linear_together(groups: &Groups<'_>, params: &LinearParams) -> Vec<Option<LinearModel>> {
    params.fit_groups(groups)
}

/// Least squares with a penalty on the squares of the coefficients.
#[trainer(together = ridge_together)]
fn ridge(group: &Group<'_>, params: &RidgeParams) -> Result<LinearModel, LinearError> {
    params.fit_features(group.features(), group.target())
}

fn ridge_together(groups: &Groups<'_>, params: &RidgeParams) -> Vec<Option<LinearModel>> {
    params.fit_groups(groups)
}

/// Least squares with a penalty on the magnitudes of the coefficients.
#[trainer]
fn lasso(group: &Group<'_>, params: &LassoParams) -> Result<ElasticNetModel, LinearError> {
    let LassoParams { alpha, fit_intercept, max_iterations, tolerance } = *params;
    let params = ElasticNetParams { alpha, l1_ratio: 1.0, fit_intercept, max_iterations, tolerance };
    params.fit_features(group.features(), group.target())
}

/// [`ElasticNetParams`] without `l1_ratio`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LassoParams {
    #[serde(alias = "penalty")]
    alpha: f64,
    fit_intercept: bool,
    max_iterations: u32,
    tolerance: f64,
}

impl Default for LassoParams {
    fn default() -> Self {
        let ElasticNetParams { alpha, fit_intercept, max_iterations, tolerance, .. } = ElasticNetParams::default();
        LassoParams { alpha, fit_intercept, max_iterations, tolerance }
    }
}

/// Least squares with a penalty on the magnitudes and the squares of the coefficients.
#[trainer]
fn elastic_net(group: &Group<'_>, params: &ElasticNetParams) -> Result<ElasticNetModel, LinearError> {
    params.fit_features(group.features(), group.target())
}

/// The probability that a target of 0 or 1 is 1.
#[trainer]
fn logistic(group: &Group<'_>, params: &LogisticParams) -> Result<LogisticModel, LogisticError> {
    params.fit_features(group.features(), group.target())
}

/// A multilayer perceptron, trained by the host's dense algebra.
#[trainer]
fn mlp(group: &Group<'_>, params: &MlpParams) -> Result<MlpModel, MlpError> {
    params.fit_features(group.features(), group.target(), group.rng())
}

/// A regression tree. As in scikit-learn, values of a feature within 1e-7 of each other are equal: scale such features.
#[trainer]
fn tree(group: &Group<'_>, params: RegressionTreeParams) -> Result<RegressionTree, TreeError> {
    let seed = params.seed.or(Some(group.seed()));
    RegressionTreeParams { seed, ..params }.fit_columns(&columns(group.features()), group.target())
}

/// A random forest of regression trees. Values of a feature within 1e-7 of each other are equal, as in `tree`.
#[trainer]
fn forest(group: &Group<'_>, params: RandomForestParams) -> Result<RandomForest, TreeError> {
    let seed = params.seed.or(Some(group.seed()));
    RandomForestParams { seed, ..params }.fit_columns(&columns(group.features()), group.target())
}

fn columns(features: Features<'_>) -> Vec<&[f64]> {
    (0..features.width()).map(|j| features.column(j)).collect()
}

/// Displayed parameters of a linear model that an iteration fitted.
#[derive(Serialize)]
struct IteratedModelParams<'a> {
    coefficients: &'a [f64],
    intercept: f64,
    iterations: u32,
    converged: bool,
}

impl IteratedModelParams<'_> {
    fn new(model: &LinearModel, iterations: u32, converged: bool) -> IteratedModelParams<'_> {
        let (coefficients, intercept) = (model.coefficients(), model.intercept());
        IteratedModelParams { coefficients, intercept, iterations, converged }
    }
}

impl Model for LinearModel {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(features, out);
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct DisplayedParams<'a> {
            coefficients: &'a [f64],
            intercept: f64,
        }
        DisplayedParams { coefficients: self.coefficients(), intercept: self.intercept() }
    }

    fn width(&self) -> Option<usize> {
        Some(self.coefficients().len())
    }
}

impl Model for MlpModel {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(features, out);
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct DisplayedParams {
            layers: Vec<u32>,
            epochs: u32,
            loss: f64,
        }
        DisplayedParams { layers: self.sizes(), epochs: self.epochs, loss: self.loss }
    }

    fn width(&self) -> Option<usize> {
        Some(self.width())
    }
}

impl Model for ElasticNetModel {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.linear.predict_into(features, out);
    }

    fn params(&self) -> impl Serialize {
        IteratedModelParams::new(&self.linear, self.iterations, self.converged)
    }

    fn width(&self) -> Option<usize> {
        Some(self.linear.coefficients().len())
    }
}

impl Model for LogisticModel {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(features, out);
    }

    fn params(&self) -> impl Serialize {
        IteratedModelParams::new(&self.log_odds, self.iterations, self.converged)
    }

    fn width(&self) -> Option<usize> {
        Some(self.log_odds.coefficients().len())
    }
}

impl Model for RegressionTree {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(&columns(features), out);
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct DisplayedParams {
            leaves: usize,
            depth: usize,
        }
        DisplayedParams { leaves: self.leaves(), depth: self.depth() }
    }

    fn width(&self) -> Option<usize> {
        Some(self.features())
    }
}

impl Model for RandomForest {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(&columns(features), out);
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct DisplayedParams {
            trees: usize,
            mean_depth: f64,
        }
        let depths: usize = self.trees().iter().map(RegressionTree::depth).sum();
        DisplayedParams { trees: self.trees().len(), mean_depth: depths as f64 / self.trees().len() as f64 }
    }

    fn width(&self) -> Option<usize> {
        Some(self.features())
    }
}
