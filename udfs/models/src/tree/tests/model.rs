//! Fitted trees: their predictions, their reproducibility, and rejected serialised trees.

use linfa::traits::{Fit, Predict};
use linfa::{Dataset, DatasetView};
use ndarray::{Array1, Array2, ShapeBuilder};

use super::{random_data, render, slices};
use crate::tree::model::{StepFunction, blocks};
use crate::tree::{Draws, RegressionTree, RegressionTreeParams, Splitter, TrainingSet, TreeError};

#[test]
fn fully_grown_trees_fit_exactly() {
    for splitter in [Splitter::Best, Splitter::Random] {
        for (rows, max_features) in [(2, None), (9, Some(1)), (500, None), (70_000, Some(2))] {
            let draws = &mut Draws::stream(7, 0);
            let columns: Vec<Vec<f64>> = (0..3).map(|_| (0..rows).map(|_| draws.unit()).collect()).collect();
            let target: Vec<f64> = (0..rows).map(|_| draws.unit() * 1e6).collect();
            let params = RegressionTreeParams { splitter, max_features, ..Default::default() };
            let tree = params.fit_columns(&slices(&columns), &target).unwrap();
            assert_eq!(tree.predict_columns(&slices(&columns)).unwrap(), target, "{rows} {params:?}");
            assert_eq!(tree.leaves(), rows);
        }
    }
}

#[test]
fn the_seed_decides() {
    let (columns, target) = random_data(&mut Draws::stream(1, 0), 200, 3, 10);
    let set = TrainingSet::new(&slices(&columns), &target).unwrap();
    let grow = |splitter, max_features, seed| {
        let params = RegressionTreeParams { splitter, max_features, seed: Some(seed), ..Default::default() };
        render(&params.fit_set(&set).unwrap())
    };
    for (splitter, max_features) in [(Splitter::Best, Some(1)), (Splitter::Random, None)] {
        assert_eq!(grow(splitter, max_features, 5), grow(splitter, max_features, 5));
        assert_ne!(grow(splitter, max_features, 5), grow(splitter, max_features, 6));
    }
}

/// Rows are predicted in lanes and blocks: the result must not depend on a row's position.
#[test]
fn rows_are_predicted_alone() {
    let (columns, target) = random_data(&mut Draws::stream(2, 0), 40_000, 2, 1000);
    let tree = RegressionTreeParams::default().fit_columns(&slices(&columns), &target).unwrap();
    let all = tree.predict_columns(&slices(&columns)).unwrap();
    for range in [0..0, 0..1, 3..10, 3..11, 3..12, 100..40_000] {
        let part: Vec<&[f64]> = columns.iter().map(|column| &column[range.clone()]).collect();
        assert_eq!(tree.predict_columns(&part).unwrap(), all[range]);
    }
    let nan: [&[f64]; 2] = [&[f64::NAN], &[f64::INFINITY]];
    assert!(tree.predict_columns(&nan).unwrap()[0].is_finite());
    let short: [&[f64]; 2] = [&[1.0], &[]];
    assert!(matches!(tree.predict_columns(&nan[..1]), Err(TreeError::Width { expected: 2, found: 1 })));
    assert!(matches!(tree.predict_columns(&short), Err(TreeError::Ragged { .. })));
}

#[test]
fn linfa_datasets_of_any_layout() {
    let (columns, target) = random_data(&mut Draws::stream(3, 0), 50, 3, 20);
    let params = RegressionTreeParams::default();
    let expected = params.fit_columns(&slices(&columns), &target).unwrap();
    let column_major = Array2::from_shape_vec((50, 3).f(), columns.concat()).unwrap();
    let row_major = column_major.as_standard_layout().to_owned();
    let target = Array1::from(target);
    for records in [column_major, row_major] {
        let dataset = Dataset::new(records.clone(), target.clone());
        let tree = params.fit(&dataset).unwrap();
        assert_eq!(tree, expected);
        let view = DatasetView::new(records.view(), target.view());
        assert_eq!(params.fit(&view).unwrap(), expected);
        assert_eq!(tree.predict(&dataset), tree.predict(&records));
        assert_eq!(tree.predict(&records).to_vec(), tree.predict_columns(&slices(&columns)).unwrap());
    }
    let error = params.fit(&Dataset::new(Array2::zeros((0, 2)), Array1::zeros(0)));
    assert!(matches!(error, Err(TreeError::NoRows)));
}

fn check_read(json: &str, expected: Result<&str, &str>) {
    let read = serde_json::from_str::<RegressionTree>(json).map_err(|error| error.to_string());
    match (&read, expected) {
        (Ok(tree), Ok(expected)) => assert_eq!(render(tree), expected),
        (Err(error), Err(expected)) => assert!(error.contains(expected), "{json}: {error}"),
        _ => panic!("{json}: {read:?} where {expected:?} is expected"),
    }
}

#[test]
fn only_whole_trees_are_read() {
    let raw = |width: &str, features: &str, splits: &str| {
        format!(r#"{{"width": {width}, "features": [{features}], "splits": [{splits}]}}"#)
    };
    let check = |width, features, splits, expected| check_read(&raw(width, features, splits), expected);
    check("1", "0", "3.5", Ok("3.5"));
    check("2", "2, 0, 0", "1, 2, 3", Ok("1<=1(2 3)"));
    check("2", "2, 0, 1, 0, 0", "1, 2, 3, 4, 5", Ok("1<=1(2 0<=3(4 5))"));
    check("0", "0", "1", Err("without features"));
    check("1", "", "", Err("ends before its last leaf"));
    check("1", "1", "1", Err("ends before its last leaf"));
    check("1", "1, 0", "1, 2", Err("ends before its last leaf"));
    check("1", "1, 1, 0, 0", "1, 2, 3, 4", Err("ends before its last leaf"));
    check("1", "0, 0", "1, 2", Err("nodes after the end"));
    check("1", "1, 0, 0, 1, 0, 0", "1, 2, 3, 4, 5, 6", Err("nodes after the end"));
    check("1", "0", "1, 2", Err("different numbers"));
    check("1", "2, 0, 0", "1, 2, 3", Err("a feature that the tree does not have"));
    check("1", "4294967295, 0, 0", "1, 2, 3", Err("a feature that the tree does not have"));
    check("1", "-1", "1", Err("invalid value"));
    check("1", "0", "1e999", Err("out of range"));
    check_read(r#"{"width": 1, "features": [0], "splits": [1], "right": [0]}"#, Err("unknown field"));
    let infinite = postcard::to_stdvec(&(1_u32, [0_u32].as_slice(), [f64::INFINITY].as_slice())).unwrap();
    assert!(postcard::from_bytes::<RegressionTree>(&infinite).is_err());
}

#[test]
fn trees_are_read_as_written() {
    let (columns, target) = random_data(&mut Draws::stream(4, 0), 300, 3, 30);
    let tree = RegressionTreeParams::default().fit_columns(&slices(&columns), &target).unwrap();
    let bytes = postcard::to_stdvec(&tree).unwrap();
    assert_eq!(postcard::from_bytes::<RegressionTree>(&bytes).unwrap(), tree);
    // No proper prefix of a serialised tree is a valid tree.
    for end in 0..bytes.len() {
        assert!(postcard::from_bytes::<RegressionTree>(&bytes[..end]).is_err());
    }
}

/// A chain of a hundred thousand splits: no function recurses.
#[test]
fn depth_is_not_limited_by_the_stack() {
    let splits = 100_000;
    let features = (0..=2 * splits).map(|node| u32::from(node < splits)).collect::<Vec<_>>();
    let bytes = postcard::to_stdvec(&(1_u32, &features, vec![1.0; features.len()])).unwrap();
    let tree: RegressionTree = postcard::from_bytes(&bytes).unwrap();
    assert_eq!((tree.depth(), tree.leaves()), (splits, splits + 1));
    assert_eq!(tree.predict_columns(&[&[0.0, 2.0]]).unwrap(), [1.0, 1.0]);
}

/// A tree of one feature in pre-order with arbitrary thresholds, possibly with unreachable leaves.
fn any_tree(draws: &mut Draws) -> RegressionTree {
    let (mut features, mut splits, mut open) = (Vec::new(), Vec::new(), 1);
    while open > 0 {
        let is_leaf = features.len() > 60 || draws.below(5) < 2;
        features.push(u32::from(!is_leaf));
        splits.push(if is_leaf { features.len() as f64 } else { f64::from(draws.below(9)) - 4.0 });
        open = if is_leaf { open - 1 } else { open + 1 };
    }
    serde_json::from_value(serde_json::json!({ "width": 1, "features": features, "splits": splits })).unwrap()
}

#[test]
fn of_one_feature_a_tree_is_a_step_function() {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, -0.0, 0.0, f64::MIN_POSITIVE];
    let near = (-20..=20).map(|i| f64::from(i) / 4.0);
    let values: Vec<f64> = special.into_iter().chain(near).collect();
    for seed in 0..2_000 {
        let tree = any_tree(&mut Draws::stream(seed, 0));
        let mut walked = vec![0.5; values.len()];
        blocks(&mut walked, 1, |row, _| values[row], |block| tree.walk(block));
        let mut stepped = vec![0.5; values.len()];
        blocks(&mut stepped, 1, |row, _| values[row], |block| StepFunction::from_tree(&tree).add_to(block));
        assert_eq!(stepped, walked, "seed {seed}: {}", render(&tree));
    }
}
