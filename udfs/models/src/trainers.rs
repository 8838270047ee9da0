//! What the host is offered: a trainer for each kind of model.

use sandbar_guest::prelude::*;

use crate::forest::{RandomForest, RandomForestParams};
use crate::linear::{LinearError, LinearModel, LinearParams};
use crate::tree::{RegressionTree, RegressionTreeParams, TreeError};

/// Ordinary least squares.
#[trainer]
fn linear(group: &Group<'_>, params: &LinearParams) -> Result<LinearModel, LinearError> {
    params.fit_features(group.features(), group.target())
}

/// A regression tree.
#[trainer]
fn tree(group: &Group<'_>, params: RegressionTreeParams) -> Result<RegressionTree, TreeError> {
    let seed = params.seed.or(Some(group.seed()));
    RegressionTreeParams { seed, ..params }.fit_columns(&columns(group.features()), group.target())
}

/// A random forest of regression trees.
#[trainer]
fn forest(group: &Group<'_>, params: RandomForestParams) -> Result<RandomForest, TreeError> {
    let seed = params.seed.or(Some(group.seed()));
    RandomForestParams { seed, ..params }.fit_columns(&columns(group.features()), group.target())
}

fn columns(features: Features<'_>) -> Vec<&[f64]> {
    (0..features.width()).map(|j| features.column(j)).collect()
}

impl Model for LinearModel {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(features, out);
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Shown<'a> {
            coefficients: &'a [f64],
            intercept: f64,
        }
        Shown { coefficients: self.coefficients(), intercept: self.intercept() }
    }

    fn width(&self) -> Option<usize> {
        Some(self.coefficients().len())
    }
}

impl Model for RegressionTree {
    fn predict(&self, features: Features<'_>, out: &mut [f64]) {
        self.predict_into(&columns(features), out);
    }

    fn params(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Shown {
            leaves: usize,
            depth: usize,
        }
        Shown { leaves: self.leaves(), depth: self.depth() }
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
        struct Shown {
            trees: usize,
            mean_depth: f64,
        }
        let depths: usize = self.trees().iter().map(RegressionTree::depth).sum();
        Shown { trees: self.trees().len(), mean_depth: depths as f64 / self.trees().len() as f64 }
    }

    fn width(&self) -> Option<usize> {
        Some(self.features())
    }
}
