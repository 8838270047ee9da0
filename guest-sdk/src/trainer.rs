//! Trainers: a group of rows in, a model out; later the model and rows in, predictions out.
//!
//! The host splits each group: the training rows come first. A trainer never sees the targets of its test rows.

use std::marker::PhantomData;

use arrow_buffer::ScalarBuffer;
use ndarray::{ArrayView1, ArrayView2, ShapeBuilder};
use sandbar_batch::{Header, decode_schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::guest::Kind;
use crate::dense::{self, DenseError, GroupedFit, GroupedOptions, grouped_least_squares};
use crate::params::{Parameter, parse};
use crate::registry::{BoundFunction, Function};
use crate::{host, input, random};

/// The features of some rows: `rows × width` values, each feature contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Features<'a> {
    /// The values from the first feature of the first row on.
    values: &'a [f64],
    /// Distance between two features of a row, in values.
    stride: usize,
    rows: usize,
    width: usize,
}

impl<'a> Features<'a> {
    /// Views `values`, with feature `j` of row `i` at index `j * stride + i`.
    ///
    /// # Panics
    /// Panics when `values` is too short.
    pub fn new(values: &'a [f64], stride: usize, rows: usize, width: usize) -> Self {
        assert!(
            width == 0 || (rows <= stride && (width - 1) * stride + rows <= values.len()),
            "{} values are not {rows} rows × {width}",
            values.len()
        );
        Features { values, stride, rows, width }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of features.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The values of feature `j` in all rows.
    ///
    /// # Panics
    /// Panics when there is no feature `j`.
    #[inline]
    pub fn column(&self, j: usize) -> &'a [f64] {
        assert!(j < self.width, "feature {j} of {}", self.width);
        &self.values[j * self.stride..][..self.rows]
    }

    /// All features as a matrix of shape (rows, width), without a copy.
    pub fn view(&self) -> ArrayView2<'a, f64> {
        let (shape, values) = ((self.rows, self.width), self.values);
        // ndarray requires strides within the values even for an empty matrix.
        let stride = if self.rows == 0 || self.width == 0 { 0 } else { self.stride };
        ArrayView2::from_shape(shape.strides((usize::from(stride > 0), stride)), values)
            .expect("`new` checked the length")
    }
}

/// A group to train on.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    features: Features<'a>,
    target: &'a [f64],
    seed: u64,
}

impl<'a> Group<'a> {
    /// Builds a group, for tests.
    ///
    /// # Panics
    /// Panics when features and target have different numbers of rows.
    pub fn new(features: Features<'a>, target: &'a [f64], seed: u64) -> Self {
        assert_eq!(features.rows(), target.len(), "a target for each row");
        Group { features, target, seed }
    }

    /// The features of the training rows.
    pub fn features(&self) -> Features<'a> {
        self.features
    }

    /// The target of each training row.
    pub fn target(&self) -> &'a [f64] {
        self.target
    }

    /// The target as a vector, without a copy.
    pub fn target_view(&self) -> ArrayView1<'a, f64> {
        ArrayView1::from(self.target)
    }

    /// Seed derived from the job's seed and the group, and from nothing else.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a random source seeded with [`Group::seed`].
    pub fn rng(&self) -> random::Xoshiro256PlusPlus {
        random::seeded(self.seed)
    }
}

#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model",
    label = "a trainer returns its model or a `Result` of one",
    note = "implement `sandbar_guest::Model`, `serde::Serialize` and `serde::Deserialize` for it"
)]
/// A fitted model. The host stores its serialised form and passes it back for predictions.
pub trait Model: Serialize + DeserializeOwned + 'static {
    /// Predicts a value for each row of `features` into `out`, which has the same length.
    fn predict(&self, features: Features<'_>, out: &mut [f64]);

    /// Returns the model's parameters for display, such as its coefficients: any value that serialises to JSON.
    fn params(&self) -> impl Serialize {}

    /// The number of features that the model was trained on, if known. The SDK then rejects predictions from another
    /// number of features.
    fn width(&self) -> Option<usize> {
        None
    }
}

/// A trainer function, as [`macro@crate::trainer`] implements it.
pub trait Trainer: 'static {
    /// Its parameters.
    type Params: DeserializeOwned;
    /// Its model.
    type Model: Model;

    /// Fits a group.
    ///
    /// # Errors
    /// The function's own error as text.
    fn fit(group: &Group<'_>, params: &Self::Params) -> Result<Self::Model, String>;

    /// Fits all groups together, for jobs with a `device`.
    const TOGETHER: Option<FitTogether<Self::Params, Self::Model>> = None;
}

/// A function that fits groups together. Returns a model for each group in order; groups with none are fitted one by
/// one.
pub type FitTogether<P, M> = fn(&Groups<'_>, &P) -> Vec<Option<M>>;

/// All groups of a training call.
#[derive(Debug)]
pub struct Groups<'a> {
    /// Columns at a distance of `stride` values, the target last.
    values: &'a [f64],
    stride: usize,
    width: usize,
    rows: usize,
    /// First row and end of the training rows of each group.
    ranges: Vec<[u32; 2]>,
}

impl Groups<'_> {
    /// Number of groups.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of features.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Fits least squares for all groups at once, on the host.
    ///
    /// # Errors
    /// Reports exhausted memory and GPU failures.
    pub fn least_squares(&self, options: GroupedOptions) -> Result<GroupedFit, DenseError> {
        // Columns are padded to a multiple of a vector's length; the padding belongs to no group.
        let mut target = vec![0.0; self.stride];
        target[..self.rows].copy_from_slice(&self.values[self.width * self.stride..][..self.rows]);
        grouped_least_squares(&self.values[..self.width * self.stride], &target, &self.ranges, None, options)
    }
}

impl Function {
    /// Registers a trainer.
    pub const fn trainer<F: Trainer>(
        name: &'static str,
        about: &'static str,
        parameters: fn() -> Vec<Parameter>,
    ) -> Function {
        let (kind, arguments, returns) = (Kind::Trainer, Vec::new as _, Vec::new as _);
        Function { name, kind, about, arguments, returns, parameters, open: open::<F> }
    }
}

fn open<F: Trainer>(params: &str) -> Result<Box<dyn BoundFunction>, String> {
    Ok(Box::new(BoundTrainer::<F> { params: parse(params)?, function: PhantomData }))
}

struct BoundTrainer<F: Trainer> {
    params: F::Params,
    function: PhantomData<F>,
}

impl<F: Trainer> BoundFunction for BoundTrainer<F> {
    fn fit(&mut self, header: &[u8]) -> Result<(), String> {
        let matrix = Matrix::load(header)?;
        let mut predictions = Vec::new();
        let (mut stored, mut params) = (Vec::new(), Vec::new());
        let models = match F::TOGETHER {
            Some(together) if dense::job_device().is_some() => together(&matrix.groups(), &self.params),
            _ => Vec::new(),
        };
        let mut models = models.into_iter();
        while let Some(at) = host::next_group() {
            let (first, train, test) = (at.first_row as usize, at.train_rows as usize, at.test_rows as usize);
            let target = &matrix.column(matrix.columns - 1)[first..first + train];
            let group = Group { features: matrix.features(first, train, 1), target, seed: at.seed };
            let model = match models.next().flatten().map_or_else(|| F::fit(&group, &self.params), Ok) {
                Ok(model) => model,
                Err(why) => {
                    host::failed(&why);
                    continue;
                }
            };
            predictions.clear();
            predictions.resize(test, 0.0);
            model.predict(matrix.features(first + train, test, 1), &mut predictions);
            match serialise(&model, &mut stored, &mut params) {
                Ok(params) => host::fitted(&stored, params, bytes(&predictions)),
                Err(why) => host::failed(&why),
            }
        }
        Ok(())
    }

    fn predict(&mut self, header: &[u8]) -> Result<(), String> {
        let matrix = Matrix::load(header)?;
        let mut predictions = Vec::new();
        while let Some(at) = host::next_group() {
            let model: F::Model = match decode_model(&host::model(), matrix.columns) {
                Ok(model) => model,
                Err(why) => {
                    host::failed(&why);
                    continue;
                }
            };
            predictions.clear();
            predictions.resize(at.test_rows as usize, 0.0);
            model.predict(matrix.features(at.first_row as usize, at.test_rows as usize, 0), &mut predictions);
            host::predicted(bytes(&predictions));
        }
        Ok(())
    }
}

/// Decodes a stored model and checks its number of features, if known.
fn decode_model<M: Model>(bytes: &[u8], width: usize) -> Result<M, String> {
    let model: M =
        postcard::from_bytes(bytes).map_err(|e| format!("the stored model does not belong to this function: {e}"))?;
    match model.width() {
        Some(trained) if trained != width => {
            Err(format!("the stored model takes {trained} features, the input has {width}"))
        }
        _ => Ok(model),
    }
}

/// Predictions as bytes for the contract; wasm32 is little-endian.
fn bytes(predictions: &[f64]) -> &[u8] {
    // SAFETY: an f64 has no padding.
    unsafe { std::slice::from_raw_parts(predictions.as_ptr().cast(), size_of_val(predictions)) }
}

fn serialise<'a, M: Model>(model: &M, stored: &mut Vec<u8>, params: &'a mut Vec<u8>) -> Result<&'a str, String> {
    stored.clear();
    let buffer = std::mem::take(stored);
    *stored = postcard::to_extend(model, buffer).map_err(|e| format!("the model can't be serialised: {e}"))?;
    params.clear();
    serde_json::to_writer(&mut *params, &model.params()).map_err(|e| format!("the parameters are not JSON: {e}"))?;
    // SAFETY: serde_json writes UTF-8.
    Ok(unsafe { std::str::from_utf8_unchecked(params) })
}

/// The input of a training call: columns of f64 at a constant stride.
struct Matrix {
    values: ScalarBuffer<f64>,
    stride: usize,
    columns: usize,
    rows: usize,
}

impl Matrix {
    fn load(header: &[u8]) -> Result<Matrix, String> {
        let header = Header::parse(header).map_err(|e| e.to_string())?;
        let columns = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?.fields().len();
        let (first, len) = if columns > 0 { header.buffer(1) } else { (0, 0) };
        let step = if columns > 1 { header.buffer(3).0 - first } else { len };
        let body = input::body(header.body_bytes());
        let values = ScalarBuffer::new(body, first / 8, (header.body_bytes() - first) / 8);
        Ok(Matrix { values, stride: step / 8, columns, rows: header.rows() })
    }

    fn column(&self, j: usize) -> &[f64] {
        &self.values[j * self.stride..][..self.rows]
    }

    /// The groups that are not settled yet.
    fn groups(&self) -> Groups<'_> {
        let ranges = host::groups_ahead().into_iter().map(|at| [at.first_row, at.first_row + at.train_rows]).collect();
        Groups { values: &self.values, stride: self.stride, width: self.columns - 1, rows: self.rows, ranges }
    }

    /// All columns except the last `without`, for `rows` rows from `first` on.
    fn features(&self, first: usize, rows: usize, without: usize) -> Features<'_> {
        Features::new(&self.values[first..], self.stride, rows, self.columns - without)
    }
}
