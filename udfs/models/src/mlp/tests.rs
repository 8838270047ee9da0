use sandbar_guest::{Features, random};

use super::{MlpError, MlpModel, MlpParams};

/// A curved surface of two features with different scales.
fn surface(rows: usize) -> (Vec<f64>, Vec<f64>) {
    let at = |row: usize, by: usize| (row * by % 997) as f64 / 997.0;
    let (a, b): (Vec<f64>, Vec<f64>) = (0..rows).map(|row| (at(row, 389), 1e4 * at(row, 631))).unzip();
    let target = a.iter().zip(&b).map(|(a, b)| 50.0 + 10.0 * (a - 0.5).abs() + b / 1e3 * a).collect();
    ([a, b].concat(), target)
}

fn fit(params: &MlpParams, values: &[f64], target: &[f64]) -> Result<MlpModel, MlpError> {
    let width = values.len() / target.len().max(1);
    params.fit_features(Features::new(values, target.len(), target.len(), width), target, random::seeded(7))
}

#[test]
fn it_fits_nonlinear_targets() {
    let (values, target) = surface(2000);
    let params = MlpParams { hidden_layer_sizes: vec![32, 16], max_epochs: 60, ..MlpParams::default() };
    let model = fit(&params, &values, &target).unwrap();
    let mut predicted = vec![0.0; 2000];
    model.predict_into(Features::new(&values, 2000, 2000, 2), &mut predicted);
    let mean = target.iter().sum::<f64>() / 2000.0;
    let error =
        |prediction: &dyn Fn(usize) -> f64| (0..2000).map(|row| (prediction(row) - target[row]).powi(2)).sum::<f64>();
    let share = error(&|row| predicted[row]) / error(&|_| mean);
    assert!(share < 0.01, "{share} of the variance is left, after {} epochs", model.epochs);
    assert_eq!(model.sizes(), [2, 32, 16, 1]);
    // With the weights on the host, predictions differ only by the order of additions.
    let loaded = model.load().unwrap();
    let at_once = loaded.predict(Features::new(&values, 2000, 2000, 2)).unwrap();
    assert!(at_once.iter().zip(&predicted).all(|(a, b)| (a - b).abs() < 1e-4 * b.abs().max(1.0)));
    for width in [1, 3] {
        let error = loaded.predict(Features::new(&[0.0; 12], 4, 4, width)).unwrap_err();
        assert!(error.message.contains("`product` does not take"), "{error}");
    }
    // The same seed gives the same bits.
    assert_eq!(fit(&params, &values, &target).unwrap(), model);
}

#[test]
fn unusable_training_data_is_rejected() {
    let (values, target) = surface(20);
    let usual = MlpParams { max_epochs: 3, ..MlpParams::default() };
    let nan = [vec![f64::NAN], values[1..].to_vec()].concat();
    for (params, values, target, expected_text) in [
        (usual.clone(), vec![], vec![], "no rows"),
        (usual.clone(), nan, target.clone(), "is NaN in row 0"),
        (MlpParams { alpha: -1.0, ..usual.clone() }, values.clone(), target.clone(), "alpha"),
        (MlpParams { batch_size: 0, ..usual.clone() }, values.clone(), target.clone(), "batch_size"),
        (
            MlpParams { hidden_layer_sizes: vec![0], ..usual.clone() },
            values.clone(),
            target.clone(),
            "hidden_layer_sizes",
        ),
        (MlpParams { learning_rate: 1e30, ..usual.clone() }, values.clone(), target.clone(), "the loss is not finite"),
    ] {
        let error = fit(&params, &values, &target).unwrap_err().to_string();
        assert!(error.contains(expected_text), "{error}");
    }
    // A constant feature and a constant target are valid.
    let model = fit(&usual, &[vec![3.0; 20], vec![1.0; 20]].concat(), &[5.0; 20]).unwrap();
    assert!(model.loss < 1.0);
}
