//! The fitted model: predictions, linfa's traits, bytes.

use linfa::Dataset;
use linfa::traits::{Fit, Predict};
use ndarray::{Array1, Array2, ShapeBuilder, array};
use sandbar_guest::{Features, Model};

use super::{LinearModel, LinearParams, fit};

fn plane() -> LinearModel {
    fit(LinearParams::default(), &[&[0.0, 2.0, 0.0, 2.0], &[0.0, 0.0, 4.0, 4.0]], &[1.0, 5.0, 13.0, 17.0]).unwrap()
}

#[test]
fn predicts() {
    for rows in [0, 1, 3, 1023, 1024, 1025, 3000] {
        let values: Vec<f64> = (0..2 * rows).map(|i| i as f64).collect();
        let mut out = vec![f64::NAN; rows];
        plane().predict_into(Features::new(&values, rows, rows, 2), &mut out);
        let expected: Vec<f64> = (0..rows).map(|i| 1.0 + 2.0 * i as f64 + 3.0 * (rows + i) as f64).collect();
        assert_eq!(out, expected);
    }
    let mut out = [0.0; 2];
    LinearModel::new(7.0, vec![]).predict_into(Features::new(&[], 0, 2, 0), &mut out);
    assert_eq!(out, [7.0, 7.0]);
}

#[test]
fn shows_its_numbers() {
    assert_eq!(serde_json::to_string(&plane().params()).unwrap(), r#"{"coefficients":[2.0,3.0],"intercept":1.0}"#);
}

#[test]
fn linfa_traits_agree() {
    let rows = array![[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]];
    let by_column = Array2::from_shape_vec((4, 2).f(), rows.t().iter().copied().collect()).unwrap();
    let target = array![1.0, 5.0, 13.0, 17.0];
    for records in [rows, by_column] {
        let dataset = Dataset::new(records.clone(), target.clone());
        let model = LinearParams::default().fit(&dataset).unwrap();
        assert_eq!(model, plane());
        let predicted: Array1<f64> = Predict::predict(&model, &records);
        assert_eq!(predicted, target);
    }
}

#[test]
fn survives_its_bytes() {
    let bytes = postcard::to_stdvec(&plane()).unwrap();
    assert_eq!(bytes.len(), 8 + 1 + 2 * 8);
    assert_eq!(postcard::from_bytes::<LinearModel>(&bytes).unwrap(), plane());
    for cut in 0..bytes.len() {
        assert!(postcard::from_bytes::<LinearModel>(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    // The claimed number of coefficients does not determine the allocation.
    let many = [&[0; 8][..], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert!(postcard::from_bytes::<LinearModel>(&many).is_err());
    let not_finite = postcard::to_stdvec(&LinearModel::new(f64::NAN, vec![])).unwrap();
    assert!(postcard::from_bytes::<LinearModel>(&not_finite).is_err());
}
